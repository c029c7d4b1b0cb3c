from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from limits import HANG_SECONDS

from hvdkit.engines.horovod import installed as horovod_info
from hvdkit.process.environment import child_environment

pytestmark = pytest.mark.processes

MAIN = "from hvdkit.tools.cli import main; main()"
FRAMEWORKS = [name for name in ("torch", "tf") if horovod_info.framework_version(name)]
needs_framework = pytest.mark.skipif(not FRAMEWORKS, reason="neither torch nor TensorFlow is installed")


def call(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", MAIN, "build-horovod", *arguments]
    environ = child_environment(**{"COLUMNS": "200", **environ})
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=HANG_SECONDS)


@needs_framework
def test_a_dry_run_tells_what_would_be_done_and_touches_nothing(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    result = call("--dry-run", "--gpu", "none", "--mpi", "off", "--jobs", "3", HVDKIT_CACHE=str(cache))
    assert result.returncode == 0, result.stderr
    for name in FRAMEWORKS:
        assert str(horovod_info.framework_version(name)) in result.stdout
    assert "to be built, key " in result.stdout
    assert "dry run: nothing was done" in result.stdout
    assert not cache.exists()


@needs_framework
def test_a_missing_compiler_ends_in_one_line(tmp_path: Path) -> None:
    result = call("--gpu", "none", PATH=str(tmp_path), CXX="", HVDKIT_CACHE=str(tmp_path))
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr.startswith("hvdkit: error: no C++ compiler found")
    assert result.stderr.count("\n") == 1


def test_a_wrong_framework_is_a_usage_error() -> None:
    result = call("--framework", "mxnet")
    assert result.returncode == 2
    assert "'mxnet' is not one of 'torch', 'tf', 'keras'" in result.stderr


@needs_framework
def test_a_failing_build_ends_in_one_line_and_the_log_has_the_rest(tmp_path: Path) -> None:
    wrapper = tmp_path / "c++"
    wrapper.write_text(
        '#!/bin/sh\ncase "$*" in *horovod*|*CMakeFiles*) echo broken >&2; exit 1;; esac\nexec c++ "$@"\n'
    )
    wrapper.chmod(0o755)
    result = call("--gpu", "none", "--mpi", "off", CXX=str(wrapper), HVDKIT_CACHE=str(tmp_path / "cache"))
    assert result.returncode == 1
    assert result.stderr.startswith("hvdkit: error: horovod did not build: no working C++ compiler")
    assert result.stderr.count("\n") == 1
    log = Path(result.stderr.rsplit("log: ", 1)[1].strip())
    assert "broken" in log.read_text()
    assert not list((tmp_path / "cache").rglob("*.whl"))
