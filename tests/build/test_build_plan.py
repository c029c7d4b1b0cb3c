"""What is built is decided by what is here, and everything that matters is part of the cache's key."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from filelock import FileLock
from limits import HANG_SECONDS

from hvdkit.errors import BuildError, EngineError
from hvdkit.tools.horovod_build import builder, machine, plan
from hvdkit.tools.horovod_build.machine import Nccl, Tool
from hvdkit.tools.horovod_build.plan import BuildPlan, Gpu, make_plan

pytestmark = pytest.mark.processes

GPU = Gpu(Path("/cuda"), "13.0", (90,), Nccl(Path("/nccl/include"), Path("/nccl/lib/libnccl.so.2"), "2.28.3"))
PLAN = BuildPlan(
    frameworks={"torch": "2.14.1+cu130"},
    compiler=Tool(Path("/usr/bin/c++"), "c++ 12.2.0"),
    cmake=Tool(Path("/usr/bin/cmake"), "3.25.1"),
    mpi=None,
    gpu=None,
    jobs=2,
)
OPEN_MPI = Tool(Path("/opt/mpi/bin/mpicxx"), "Open MPI 4.1.4")


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    "other",
    [
        replace(PLAN, frameworks={"torch": "2.14.1+cu126"}),
        replace(PLAN, frameworks={"torch": "2.14.2+cu130"}),
        replace(PLAN, frameworks={"torch": "2.14.1+cu130", "tf": "2.21.0"}),
        replace(PLAN, compiler=Tool(PLAN.compiler.path, "c++ 13.1.0")),
        replace(PLAN, mpi=OPEN_MPI),
        replace(PLAN, gpu=GPU),
    ],
)
def test_whatever_changes_the_wheel_changes_the_key(other: BuildPlan) -> None:
    assert other.key() != PLAN.key()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (replace(PLAN, mpi=OPEN_MPI), replace(PLAN, mpi=replace(OPEN_MPI, version="Open MPI 5.0.11"))),
        (replace(PLAN, mpi=OPEN_MPI), replace(PLAN, mpi=replace(OPEN_MPI, path=Path("/other/bin/mpicxx")))),
        (replace(PLAN, gpu=GPU), replace(PLAN, gpu=replace(GPU, capabilities=(80, 90)))),
        (replace(PLAN, gpu=GPU), replace(PLAN, gpu=replace(GPU, nccl=replace(GPU.nccl, version="2.30.7")))),
    ],
)
def test_mpi_and_gpu_are_in_the_key_with_version_and_place(one: BuildPlan, other: BuildPlan) -> None:
    assert one.key() != other.key()


def test_the_key_holds_horovod_edits_python_and_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    identity = PLAN.identity()
    assert identity["horovod"] == "0.28.1"
    assert identity["python"].startswith("cpython-3")
    before = PLAN.key()
    monkeypatch.setattr(machine, "cpu_flags", lambda: ["another"])
    assert PLAN.key() != before
    monkeypatch.undo()
    assert PLAN.key() == before
    monkeypatch.setattr(plan.edits, "__file__", __file__)
    assert PLAN.key() != before


def test_what_does_not_change_the_wheel_keeps_the_key() -> None:
    assert replace(PLAN, jobs=7, cmake=Tool(Path("/cmake"), "4.0.0")).key() == PLAN.key()


def test_the_environments_own_mpi_has_the_same_key_wherever_the_environment_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys = set()
    for folder in (Path("/one/bin"), Path("/two/bin")):
        monkeypatch.setattr(machine, "scripts_folder", lambda folder=folder: folder)
        keys.add(replace(PLAN, mpi=Tool(folder / "mpicxx", "Open MPI 5.0.11")).key())
    assert len(keys) == 1


def test_a04_the_build_sets_the_policy_that_cmake_4_wants() -> None:
    settings = PLAN.settings(Path("/build"))
    assert settings["CMAKE_POLICY_VERSION_MINIMUM"] == "3.5"
    assert settings["HOROVOD_CMAKE"] == "/usr/bin/cmake"


def test_the_settings_name_what_is_built_and_what_is_not() -> None:
    settings = PLAN.settings(Path("/build"))
    assert settings["HOROVOD_WITH_PYTORCH"] == settings["HOROVOD_WITHOUT_TENSORFLOW"] == "1"
    assert settings["HOROVOD_WITHOUT_MPI"] == settings["HOROVOD_WITH_GLOO"] == "1"
    assert "HOROVOD_GPU_OPERATIONS" not in settings
    settings = replace(PLAN, mpi=OPEN_MPI, gpu=GPU).settings(Path("/build"))
    assert settings["HOROVOD_WITH_MPI"] == "1"
    assert settings["PATH"].split(":")[:2] == ["/opt/mpi/bin", "/cuda/bin"]
    assert settings["HOROVOD_GPU_OPERATIONS"] == "NCCL"
    assert settings["HOROVOD_NCCL_LINK"] == "SHARED"
    assert settings["HOROVOD_NCCL_LIB"] == "/build"
    assert settings["HOROVOD_BUILD_CUDA_CC_LIST"] == "90"


@pytest.fixture
def with_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"torch": "2.14.1+cu130", "tf": None}
    monkeypatch.setattr(plan, "framework_version", versions.get)
    monkeypatch.setattr(plan, "torch_cuda_version", lambda: "13.0")
    monkeypatch.setattr(plan, "_check_build_needs", lambda: None)


@pytest.mark.usefixtures("with_torch")
class TestChoices:
    def test_those_installed_are_the_default(self) -> None:
        assert make_plan((), "none", "off", None).frameworks == {"torch": "2.14.1+cu130"}

    def test_a_framework_that_is_not_installed_is_refused(self) -> None:
        with pytest.raises(BuildError, match="tensorflow is not installed here"):
            make_plan(("keras",), "none", "off", None)

    def test_an_unknown_framework_is_refused(self) -> None:
        with pytest.raises(EngineError, match="knows no framework 'mxnet'"):
            make_plan(("mxnet",), "none", "off", None)

    def test_no_framework_at_all_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(plan, "framework_version", lambda name: None)
        with pytest.raises(BuildError, match="neither torch nor tensorflow is installed"):
            make_plan((), "none", "off", None)

    def test_a_framework_that_is_too_old_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(plan, "framework_version", {"torch": "1.13.1"}.get)
        with pytest.raises(BuildError, match=r"torch 1\.13\.1 is older than 2\.1; upgrade it"):
            make_plan((), "none", "off", None)

    def test_no_compiler_is_refused(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.delenv("CXX", raising=False)
        with pytest.raises(BuildError, match=r"no C\+\+ compiler found"):
            make_plan((), "none", "off", None)

    def test_a_compiler_without_the_standard_is_refused(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        old = program(tmp_path / "old-c++", '[ "$1" = --version ] && echo "old 4.8" && exit 0\nexit 1')
        monkeypatch.setenv("CXX", str(old))
        with pytest.raises(BuildError, match=r"old 4\.8\) does not compile C\+\+20, which torch 2\.14\.1"):
            make_plan((), "none", "off", None)

    def test_a_cmake_that_is_too_old_is_refused(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("HOROVOD_CMAKE", str(program(tmp_path / "cmake", 'echo "cmake version 3.10.2"')))
        with pytest.raises(BuildError, match=r"CMake 3\.10\.2 .* is older than 3\.13"):
            make_plan((), "none", "off", None)

    def test_mpi_on_without_mpi_is_refused_and_auto_goes_without(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(machine, "find_mpicxx", lambda: None)
        assert make_plan((), "none", "auto", None).mpi is None
        with pytest.raises(BuildError, match="--mpi on, but no mpicxx"):
            make_plan((), "none", "on", None)

    def test_the_chosen_mpicxx_is_taken_with_its_version(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        wrapper = program(tmp_path / "bin/mpicxx", 'echo "mpicxx: Open MPI 4.1.4 (Language: C++)"')
        monkeypatch.setenv("MPICXX", str(wrapper))
        found = make_plan((), "none", "auto", None).mpi
        assert found == Tool(wrapper, "Open MPI 4.1.4 (Language: C++)")

    def test_gpu_auto_without_a_gpu_builds_for_the_cpu(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(machine, "gpu_capabilities", list)
        assert make_plan((), "auto", "off", None).gpu is None

    def test_nccl_without_a_toolkit_or_cuda_torch_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(machine, "find_cuda_home", lambda: None)
        with pytest.raises(BuildError, match=r"--gpu nccl, but a CUDA toolkit .* was not found"):
            make_plan((), "nccl", "off", None)
        monkeypatch.setattr(plan, "torch_cuda_version", lambda: None)
        with pytest.raises(BuildError, match=r"--gpu nccl, but torch 2\.14\.1\+cu130 is built without CUDA"):
            make_plan((), "nccl", "off", None)

    def test_jobs_are_the_users_or_at_least_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert make_plan((), "none", "off", 5).jobs == 5
        monkeypatch.setattr(machine, "available_memory", lambda: 10**6)
        assert make_plan((), "none", "off", None).jobs == 1


def test_an_mpi_outside_the_environment_is_not_searched_inside_it() -> None:
    reasons = [edit.reason for edit in replace(PLAN, mpi=OPEN_MPI).edits()]
    assert not any("from the cache" in reason for reason in reasons)
    inside = Tool(machine.scripts_folder() / "mpicxx", "Open MPI 5.0.11")
    reasons = [edit.reason for edit in replace(PLAN, mpi=inside).edits()]
    assert any("from the cache" in reason for reason in reasons)


def test_a_wheel_in_the_cache_is_taken_without_a_build(tmp_path: Path) -> None:
    wheel = builder.wheel_folder(tmp_path, PLAN) / "horovod-0.28.1-cp311-cp311-linux_x86_64.whl"
    wheel.parent.mkdir(parents=True)
    wheel.touch()
    with (tmp_path / "log").open("w") as log:
        assert builder.obtain_wheel(PLAN, tmp_path, log, lambda what, percent: None, use_cache=True) == wheel


def test_a_second_build_of_the_same_wheel_waits_for_the_first(tmp_path: Path) -> None:
    folder = builder.wheel_folder(tmp_path, PLAN)
    folder.mkdir(parents=True)
    wheel = folder / "horovod-0.28.1-cp311-cp311-linux_x86_64.whl"
    said: list[str] = []
    first = FileLock(folder / "lock")
    first.acquire()

    def second() -> Path:
        with (tmp_path / "log").open("w") as log:
            report = lambda what, percent: said.append(what)  # noqa: E731
            return builder.obtain_wheel(PLAN, tmp_path, log, report, use_cache=True)

    with ThreadPoolExecutor() as pool:
        result = pool.submit(second)
        deadline = time.monotonic() + HANG_SECONDS
        while not said and time.monotonic() < deadline:
            time.sleep(0.01)
        assert said == ["waiting for another build of the same wheel"]
        assert not result.done()
        wheel.touch()
        first.release()
        assert result.result(timeout=HANG_SECONDS) == wheel
    assert len(said) == 1
