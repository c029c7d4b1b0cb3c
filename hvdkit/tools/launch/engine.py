"""Which engine ``hvdkit run`` takes, found out without importing a framework."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from hvdkit.engines.horovod import installed as horovod_info
from hvdkit.errors import EngineError, LaunchError

ENGINES = ("auto", "horovod", "torch", "mpi", "serial")
FRAMEWORKS = ("torch", "tf", "keras")


@dataclass(frozen=True)
class Choice:
    """An engine, and why it was taken."""

    engine: str
    reason: str


def choose_engine(engine: str, processes: int, framework: str | None) -> Choice:
    """Decide on the engine, and check that it is there.

    Args:
        engine: One of ``ENGINES``.
        processes: How many are wanted.
        framework: ``torch``, ``tf``, ``keras`` or None if it is not known.

    Raises:
        EngineError: The engine is unknown or not installed.
        LaunchError: Engine ``serial`` is to run more than one process.
    """
    if engine not in ENGINES:
        raise EngineError(f"engine {engine!r} is unknown; use {', '.join(ENGINES[:-1])} or {ENGINES[-1]}")
    if engine == "auto":
        return _automatic(processes, framework)
    if engine == "serial" and processes != 1:
        raise LaunchError(f"engine serial is one process, not {processes}; use -np 1 or another engine")
    if engine == "horovod" and not _installed("horovod"):
        raise EngineError("engine horovod: Horovod is not installed; build it with: hvdkit build-horovod")
    if engine == "horovod" and not any(horovod_info.built_for(name) for name in FRAMEWORKS):
        raise EngineError("engine horovod: this Horovod was built for no framework; rebuild it: hvdkit build-horovod")
    if engine == "torch" and not _installed("torch"):
        raise EngineError("engine torch: PyTorch is not installed; pip install torch")
    if engine == "mpi" and not _mpi_ready():
        raise EngineError("engine mpi: mpi4py or mpiexec is not installed; pip install 'hvdkit[mpi]'")
    return Choice(engine, "asked for")


def find_mpiexec() -> str | None:
    """Return the MPI launcher: the one beside the Python interpreter, else the first on PATH, else None."""
    for name in ("mpiexec", "mpirun"):
        beside = Path(sys.executable).with_name(name)
        if beside.is_file():
            return str(beside)
    return shutil.which("mpiexec") or shutil.which("mpirun")


def _automatic(processes: int, framework: str | None) -> Choice:
    if processes == 1:
        return Choice("serial", "one process needs no other")
    if _horovod_serves(framework):
        return Choice("horovod", f"Horovod is built for {framework}" if framework else "Horovod is installed")
    if framework in (None, "torch") and _installed("torch"):
        return Choice("torch", "PyTorch is installed, Horovod is not built for it")
    if _mpi_ready():
        return Choice("mpi", "mpi4py and mpiexec are installed")
    raise EngineError(f"no engine for {processes} processes is installed; pip install 'hvdkit[mpi]'")


def _horovod_serves(framework: str | None) -> bool:
    if not _installed("horovod"):
        return False
    names = FRAMEWORKS[:2] if framework is None else (framework,)
    return any(horovod_info.built_for(name) for name in names)


def _mpi_ready() -> bool:
    return _installed("mpi4py") and find_mpiexec() is not None


def _installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None
