"""Which launcher runs which engine in which framework, and which engine ``auto`` takes."""

from __future__ import annotations

from dataclasses import dataclass

from hvdkit.engines.base import Engine
from hvdkit.engines.horovod.installed import built_for, mpi_built
from hvdkit.errors import EngineError, LaunchError
from hvdkit.process.environment import LaunchedAs, launched_as, requested_engine

ENGINES_BY_LAUNCHER = {
    "plain": ("serial", "horovod", "torch", "mpi"),
    "horovodrun": ("horovod",),
    "torchrun": ("torch",),
    "mpirun": ("horovod", "mpi"),
}

# tensor libraries: Keras counts as the library it runs on
ENGINES_BY_LIBRARY = {
    "torch": ("serial", "horovod", "torch", "mpi"),
    "tf": ("serial", "horovod", "mpi"),
    "jax": ("serial", "mpi"),
}


@dataclass(frozen=True)
class Choice:
    """An engine, and why it was taken."""

    engine: str
    reason: str


def choose(engine: str, library: str | None, launched: LaunchedAs | None = None) -> Choice:
    """Decide which engine runs under this launcher for this tensor library.

    Args:
        engine: ``auto`` or the name of an engine.
        library: ``torch``, ``tf``, ``jax``, or None for a program without a framework.
        launched: What the launcher's environment says; read from it if None.

    Raises:
        EngineError: The engine is unknown or does not serve this library.
        LaunchError: The engine does not run under this launcher.
    """
    launched = launched or launched_as()
    if engine == "auto" and (requested := requested_engine()):
        choice = Choice(requested, "chosen by hvdkit run")
    elif engine == "auto":
        choice = _automatic(library, launched)
    else:
        choice = Choice(engine, "asked for")
    _check(choice.engine, library, launched.launcher)
    return choice


def _automatic(library: str | None, launched: LaunchedAs) -> Choice:
    if launched.launcher == "plain":
        return Choice("serial", "started without a launcher: one process")
    if launched.launcher == "mpirun":
        if mpi_built() and any(built_for(name) for name in _bindings(library)):
            return Choice("horovod", "started by mpirun, and Horovod was built with MPI")
        return Choice("mpi", "started by mpirun")
    return Choice(ENGINES_BY_LAUNCHER[launched.launcher][0], f"started by {launched.launcher}")


def _check(engine: str, library: str | None, launcher: str) -> None:
    known = ENGINES_BY_LAUNCHER["plain"]
    if engine not in known:
        raise EngineError(f"engine {engine!r} is unknown; use auto, {', '.join(known)}")
    if library is not None and engine not in ENGINES_BY_LIBRARY[library]:
        served = ", ".join(ENGINES_BY_LIBRARY[library])
        raise EngineError(f"engine {engine!r} cannot carry tensors of {library!r}; use one of {served}")
    if engine not in ENGINES_BY_LAUNCHER[launcher]:
        starters = [name for name, engines in ENGINES_BY_LAUNCHER.items() if engine in engines and name != "plain"]
        hint = f"start it with {' or '.join(starters)}" if starters else "start it with plain python"
        raise LaunchError(
            f"engine {engine!r} does not run under {launcher}; {hint}, or with: hvdkit run --engine {engine}"
        )


def create(choice: Choice, library: str | None, launched: LaunchedAs | None = None) -> Engine:
    """Start an engine, and check that it finds as many processes as the launcher started.

    Raises:
        EngineError: The engine cannot start.
        LaunchError: The engine finds another number of processes.
    """
    launched = launched or launched_as()
    engine = _start(choice.engine, library, launched)
    if engine.size != launched.size:
        raise LaunchError(
            f"{launched.launcher} started {launched.size} processes but engine {engine.name!r} finds {engine.size}; "
            f"use the launcher that belongs to the engine, or: hvdkit run -np {launched.size} --engine {engine.name}"
        )
    return engine


def _start(name: str, library: str | None, launched: LaunchedAs) -> Engine:
    if name == "serial":
        from hvdkit.engines.serial.engine import SerialEngine

        return SerialEngine()
    if name == "mpi":
        from hvdkit.engines.mpi.engine import MpiEngine

        return MpiEngine()
    if name == "torch":
        from hvdkit.engines.torch_distributed.engine import TorchDistributedEngine

        return TorchDistributedEngine(launched=launched.launcher == "torchrun")
    from hvdkit.engines.horovod.engine import HorovodEngine

    return HorovodEngine(_binding(library))


def _bindings(library: str | None) -> tuple[str, ...]:
    return (library,) if library in ("torch", "tf") else ("torch", "tf")


def _binding(library: str | None) -> str:
    candidates = _bindings(library)
    return next((name for name in candidates if built_for(name)), candidates[0])
