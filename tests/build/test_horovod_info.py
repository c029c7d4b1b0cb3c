"""What is known of an installed Horovod without importing it: on stand-ins laid out like the real packages."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest
from limits import HANG_SECONDS

from hvdkit.engines.horovod import installed as horovod_info
from hvdkit.errors import EngineError

BOTH = b"..MPI_Init_thread..N4gloo7ContextE.."


def write(path: Path, content: bytes | str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in front of the environment's packages."""
    write(tmp_path / "horovod/__init__.py", "raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def add_extension(site: Path, framework: str, content: bytes = BOTH) -> None:
    name = {"torch": "torch/mpi_lib_v2", "tf": "tensorflow/mpi_lib"}[framework]
    write(site / f"horovod/{name}{sysconfig.get_config_var('EXT_SUFFIX')}", content)


def add_record(site: Path, **versions: str) -> None:
    write(site / "horovod/hvdkit_build.json", json.dumps({"frameworks": versions}))


def add_torch(site: Path, version: str) -> None:
    write(
        site / "torch-0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {version.split('+')[0]}\n"
    )
    write(site / "torch/__init__.py", "raise RuntimeError('imported')")
    write(site / "torch/version.py", f"__version__ = '{version}'\ncuda: Optional[str] = '13.0'\n")


def test_the_extension_of_each_framework_is_looked_for(site: Path) -> None:
    add_extension(site, "torch")
    assert horovod_info.built_for("torch")
    assert not horovod_info.built_for("tf")
    assert not horovod_info.built_for("keras")
    add_extension(site, "tf")
    assert horovod_info.built_for("keras")


def test_an_unknown_framework_is_refused(site: Path) -> None:
    with pytest.raises(EngineError, match="knows no framework 'jax'; choose torch, tf or keras"):
        horovod_info.built_for("jax")


@pytest.mark.parametrize(
    ("content", "mpi", "gloo"),
    [(BOTH, True, True), (b"N4gloo", False, True), (b"MPI_Init_thread", True, False), (b"x", False, False)],
)
def test_a06_controllers_are_read_from_the_extension(site: Path, content: bytes, mpi: bool, gloo: bool) -> None:
    add_extension(site, "tf", content)
    assert horovod_info.mpi_built() is mpi
    assert horovod_info.gloo_built() is gloo


@pytest.mark.parametrize("spoil", [lambda site: None, lambda site: add_extension(site, "torch", b"")])
def test_a06_a_controller_that_cannot_be_determined_is_none(site: Path, spoil: Callable[[Path], None]) -> None:
    spoil(site)  # no extension, or an empty file
    assert horovod_info.mpi_built() is None
    assert horovod_info.gloo_built() is None
    horovod_info.check_controllers()


@pytest.mark.parametrize(("mpi", "gloo"), [(True, None), (None, False), (False, True), (None, None)])
def test_a06_one_possible_controller_is_enough(
    monkeypatch: pytest.MonkeyPatch, mpi: bool | None, gloo: bool | None
) -> None:
    monkeypatch.setattr(horovod_info, "mpi_built", lambda: mpi)
    monkeypatch.setattr(horovod_info, "gloo_built", lambda: gloo)
    horovod_info.check_controllers()


def test_a06_no_controller_is_refused_with_the_remedy(site: Path) -> None:
    add_extension(site, "torch", b"neither")
    with pytest.raises(EngineError, match=r"neither Gloo nor MPI.*rebuild it with: hvdkit build-horovod"):
        horovod_info.check_controllers()


def test_the_same_version_passes(site: Path) -> None:
    add_torch(site, "2.14.1+cu130")
    add_record(site, torch="2.14.1+cu130")
    horovod_info.check_build_matches("torch")


@pytest.mark.parametrize("installed", ["2.15.0+cu130", "2.14.2+cu130", "2.14.1+cpu"])
def test_a_framework_upgraded_after_the_build_is_refused(site: Path, installed: str) -> None:
    add_torch(site, installed)
    add_record(site, torch="2.14.1+cu130")
    with pytest.raises(EngineError) as refusal:
        horovod_info.check_build_matches("torch")
    assert str(refusal.value) == (
        f"horovod was built for torch 2.14.1+cu130, but torch {installed} is installed; "
        "rebuild it with: hvdkit build-horovod --framework torch"
    )


def test_a_rebuild_keeps_the_other_framework(site: Path) -> None:
    add_torch(site, "2.15.0")
    write(site / "tensorflow-0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tensorflow\nVersion: 2.21.0\n")
    add_record(site, torch="2.14.1", tf="2.21.0")
    with pytest.raises(EngineError, match=r"--framework tf --framework torch$"):
        horovod_info.check_build_matches("torch")
    horovod_info.check_build_matches("keras")


def test_a_build_by_another_tool_is_judged_by_horovods_own_note(site: Path) -> None:
    add_torch(site, "2.14.1")
    write(site / "horovod/metadata.json", '{"pytorch": "2.13.0", "dummy": "none"}')
    with pytest.raises(EngineError, match=r"built for torch 2\.13\.0, but torch 2\.14\.1 is installed"):
        horovod_info.check_build_matches("torch")


@pytest.mark.parametrize("note", ["", "[]", "{"])
def test_a_build_without_a_readable_note_is_taken_as_it_is(site: Path, note: str) -> None:
    add_torch(site, "2.14.1")
    write(site / "horovod/hvdkit_build.json", note)
    horovod_info.check_build_matches("torch")


def test_torchs_cuda_version_is_read_without_importing_it(site: Path) -> None:
    add_torch(site, "2.14.1+cu130")
    assert horovod_info.torch_cuda_version() == "13.0"
    write(site / "torch/version.py", "__version__ = '2.14.1+cpu'\ncuda: Optional[str] = None\n")
    assert horovod_info.torch_cuda_version() is None


@pytest.mark.processes
def test_asking_imports_no_framework_and_no_horovod() -> None:
    program = (
        "import sys; from hvdkit.engines.horovod import installed as h\n"
        "for name in ('torch', 'tf', 'keras'):\n"
        "    h.built_for(name), h.framework_version(name)\n"
        "h.mpi_built(), h.gloo_built(), h.horovod_version(), h.built_versions(), h.torch_cuda_version()\n"
        "print(sorted({'torch', 'tensorflow', 'keras', 'horovod', 'numpy'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=HANG_SECONDS)
    assert result.stdout.strip() == "[]", result.stderr
