"""What this machine offers to a build: compiler, CMake, MPI, CUDA and NCCL. Nothing is imported or changed."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from hvdkit.engines.horovod.installed import package_folder
from hvdkit.process.environment import child_environment

_PROBE_SECONDS = 60
_CUDA_INCLUDES = ("include", "targets/x86_64-linux/include", "targets/sbsa-linux/include")


@dataclass(frozen=True)
class Tool:
    """A program that was found: where it is and what it says of its version."""

    path: Path
    version: str


@dataclass(frozen=True)
class Nccl:
    """NCCL's header folder, library file and version."""

    include: Path
    library: Path
    version: str


def scripts_folder() -> Path:
    """Return the folder of this environment's programs."""
    return Path(sysconfig.get_path("scripts"))


def find_compiler() -> Tool | None:
    """Return the C++ compiler: the environment variable CXX, else c++ or g++ on PATH."""
    return _find(child_environment().get("CXX"), "c++", "g++", beside_python=False)


def find_cmake() -> Tool | None:
    """Return CMake: the environment variable HOROVOD_CMAKE, else one beside Python, else one on PATH."""
    tool = _find(child_environment().get("HOROVOD_CMAKE"), "cmake")
    if tool is None:
        return None
    return Tool(tool.path, tool.version.removeprefix("cmake version "))


def cmake_numbers(version: str) -> tuple[int, int]:
    """Return major and minor of what CMake says of its version; (0, 0) if that cannot be read."""
    found = re.search(r"(\d+)\.(\d+)", version)
    return (int(found.group(1)), int(found.group(2))) if found else (0, 0)


def find_mpicxx() -> Tool | None:
    """Return MPI's compiler wrapper: the environment variable MPICXX, else mpicxx beside Python or on PATH."""
    tool = _find(child_environment().get("MPICXX"), "mpicxx")
    if tool is None:
        return None
    # Open MPI answers the first, MPICH and its kin the second
    version = first_line([str(tool.path), "--showme:version"]) or first_line([str(tool.path), "-v"])
    return Tool(tool.path, re.sub(r"^\S*mpicxx:? (for )?", "", version) or "unknown MPI")


def supports_standard(compiler: Path, standard: int) -> bool:
    """Say whether the compiler accepts ``-std=c++STANDARD``."""
    command = [str(compiler), f"-std=c++{standard}", "-x", "c++", "-fsyntax-only", "-"]
    try:
        result = subprocess.run(command, input="int main() {}", capture_output=True, text=True, timeout=_PROBE_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return result.returncode == 0


def find_cuda_home() -> Path | None:
    """Return a CUDA toolkit that has both the compiler and the headers, or None."""
    environ = child_environment()
    candidates = [environ.get("HOROVOD_CUDA_HOME"), environ.get("CUDA_HOME"), "/usr/local/cuda"]
    nvcc = shutil.which("nvcc")
    if nvcc:
        candidates.append(str(Path(nvcc).resolve().parent.parent))
    for home in (Path(each) for each in candidates if each):
        has_headers = any((home / folder / "cuda_runtime.h").is_file() for folder in _CUDA_INCLUDES)
        if has_headers and (home / "bin/nvcc").is_file():
            return home
    return None


def cuda_version(home: Path) -> str:
    """Return the release of the CUDA toolkit, such as ``13.0``."""
    output = _output([str(home / "bin/nvcc"), "--version"])
    found = re.search(r"release (\d+\.\d+)", output)
    return found.group(1) if found else "unknown"


def gpu_capabilities() -> list[int]:
    """Return the compute capabilities of this machine's GPUs, such as ``[90]``; empty if there are none."""
    lines = _output(["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]).split()
    return sorted({int(line.replace(".", "")) for line in lines if re.fullmatch(r"\d+\.\d", line)})


def find_nccl(cuda_home: Path | None) -> Nccl | None:
    """Return NCCL: HOROVOD_NCCL_HOME, else NVIDIA's Python package, else the toolkit's or the system's.

    The package comes before the system's because it is the library that torch itself loads.
    """
    homes = [child_environment().get("HOROVOD_NCCL_HOME")]
    package = package_folder("nvidia")
    homes += [str(package / "nccl") if package else None, str(cuda_home) if cuda_home else None, "/usr"]
    for home in (Path(each) for each in homes if each):
        header = home / "include/nccl.h"
        libraries = [*home.glob("lib*/libnccl.so*"), *home.glob("lib/*-linux-gnu/libnccl.so*")]
        if header.is_file() and libraries:
            return Nccl(header.parent, sorted(libraries)[-1], _nccl_version(header))
    return None


def cpu_flags() -> list[str]:
    """Return which of the instruction sets that Horovod compiles for this processor has."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return []
    found = re.search(r"^flags\s*:(.*)$", text, re.MULTILINE)
    return sorted({"avx", "f16c", "fma"} & set(found.group(1).split())) if found else []


def available_memory() -> int:
    """Return the bytes of memory that new processes can have; 0 if that cannot be read."""
    try:
        found = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found.group(1)) * 1024 if found else 0


def first_line(command: list[str]) -> str:
    """Return the first line that a command prints; empty if it fails."""
    return next(iter(_output(command).splitlines()), "").strip()


def _nccl_version(header: Path) -> str:
    text = header.read_text(errors="replace")
    numbers = [re.search(rf"#define NCCL_{part}\s+(\d+)", text) for part in ("MAJOR", "MINOR", "PATCH")]
    return ".".join(each.group(1) for each in numbers if each) or "unknown"


def _find(chosen: str | None, *names: str, beside_python: bool = True) -> Tool | None:
    for name in ([chosen] if chosen else []) + list(names):
        path = _locate(name, beside_python=beside_python)
        if path is not None:
            return Tool(path, first_line([str(path), "--version"]))
    return None


def _locate(name: str, *, beside_python: bool) -> Path | None:
    folders = [str(scripts_folder()), str(Path(sys.executable).parent)] if beside_python else []
    for folder in (*folders, None):
        path = shutil.which(name, path=folder)
        if path:
            return Path(path)
    return None


def _output(command: list[str]) -> str:
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return result.stdout if result.returncode == 0 else ""
