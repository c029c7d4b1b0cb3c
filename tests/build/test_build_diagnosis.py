from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from limits import HANG_SECONDS

from hvdkit.tools.horovod_build.diagnosis import explain
from hvdkit.tools.horovod_build.process import run_logged

pytestmark = pytest.mark.processes


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("  No CMAKE_CXX_COMPILER could be found.", "no working C++ compiler"),
        ("c10/util/C++17.h:27:2: error: #error You need C++17 to compile PyTorch", "C++ standard is too old"),
        ("g++: error: unrecognized command line option '-std=c++20'", "C++ standard is too old"),
        ("  Compatibility with CMake < 3.5 has been removed from CMake.", "CMAKE_POLICY_VERSION_MINIMUM=3.5"),
        ("fatal error: cuda_runtime.h: No such file or directory", "--gpu none"),
        ("fatal error: cuda_runtime_api.h: No such file or directory", "--gpu none"),
        ("Could NOT find NCCL (missing: NCCL_INCLUDE_DIR NCCL_LIBRARY)", "nvidia-nccl-cu12"),
        ("Could NOT find MPI (missing: MPI_CXX_FOUND CXX)", "--mpi off"),
        ("sh: 1: mpicxx: not found", "--mpi off"),
        ("c++: fatal error: Killed signal terminated program cc1plus", "--jobs 1"),
        ("fatal error: Python.h: No such file or directory", "python3-dev"),
        ("OSError: [Errno 28] No space left on device", "the disk is full"),
        ("ModuleNotFoundError: No module named 'packaging'", "module packaging is missing"),
        ("      error: invalid command 'bdist_wheel'", "package wheel is missing"),
        ("ERROR: No matching distribution found for horovod==0.28.1", "package index"),
        ("NewConnectionError: Failed to establish a new connection", "cannot be reached"),
        ("/usr/bin/ld: cannot find -lmpi: No such file or directory", "does not find libmpi"),
        ("x: error while loading shared libraries: libmpi.so.40: cannot open", "libmpi.so.40 is not found"),
    ],
)
def test_known_failures_are_told_in_one_line(line: str, answer: str) -> None:
    noise = "[ 12%] Building CXX object horovod/common/common.cc.o\nwarning: unused variable 'x'\n"
    told = explain(f"{noise}{line}\n{noise}")
    assert told is not None
    assert answer in told
    assert "\n" not in told


def test_an_unknown_failure_is_not_guessed_at() -> None:
    assert explain("[ 12%] Building CXX object\nhorovod.cc:1: error: something new\n") is None


def test_a_real_compilers_missing_header_is_recognised() -> None:
    result = subprocess.run(
        ["c++", "-x", "c++", "-fsyntax-only", "-"],
        input="#include <nccl_that_is_not_here/nccl.h>",
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )
    told = explain(result.stderr)
    assert told is not None
    assert "NCCL's headers are missing" in told


def test_output_goes_to_the_log_line_by_line(tmp_path: Path) -> None:
    seen: list[str] = []
    with (tmp_path / "log").open("w") as log:
        command = [sys.executable, "-c", "print('one'); print('two')"]
        code, output = run_logged(command, {}, log, 30, seen.append)
    assert (code, output, seen) == (0, "one\ntwo\n", ["one\n", "two\n"])
    assert (tmp_path / "log").read_text().endswith("one\ntwo\n")


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.mark.parametrize("script", ["sleep 300 & echo $!; wait", "sleep 300 & echo $!"])
def test_the_time_limit_ends_the_process_and_its_children(tmp_path: Path, script: str) -> None:
    started = time.monotonic()
    with (tmp_path / "log").open("w") as log:
        code, output = run_logged(["/bin/sh", "-c", script], {}, log, 1)
    assert code == 124
    assert time.monotonic() - started < 30
    deadline = time.monotonic() + HANG_SECONDS
    while not gone(int(output)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert gone(int(output))
