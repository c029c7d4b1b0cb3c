"""Which engine is taken, by a rank that a launcher has started and by ``hvdkit run`` before it starts any."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hvdkit.engines.spec import Spec
from hvdkit.engines.table import SPECS, serving, spec_of
from hvdkit.errors import EngineError, LaunchError
from hvdkit.process.environment import LaunchedAs, launched_as, requested_engine

if TYPE_CHECKING:
    from hvdkit.engines.base import Engine


@dataclass(frozen=True)
class Choice:
    """An engine, and why it was taken."""

    engine: str
    reason: str


def choose(engine: str, library: str | None, launched: LaunchedAs | None = None) -> Choice:
    """Decide which engine this rank uses.

    Args:
        engine: ``auto`` or the name of an engine.
        library: ``torch``, ``tf``, ``jax``, or None for a program without a framework.
        launched: What the launcher's environment says; read from it if None.

    Raises:
        EngineError: The engine is unknown or does not carry this library's tensors.
        LaunchError: The engine does not run under this launcher.
    """
    launched = launched or launched_as()
    if engine != "auto":
        choice = Choice(engine, "asked for")
    elif requested := requested_engine():
        choice = Choice(requested, "chosen by hvdkit run")
    elif launched.launcher == "plain":
        choice = Choice("serial", "started without a launcher: one process")
    else:
        choice = _launched(library, launched.launcher)
    _check_carries(spec_of(choice.engine), library)
    _check_launcher(spec_of(choice.engine), launched.launcher)
    return choice


def choose_to_start(engine: str, processes: int, library: str | None) -> Choice:
    """Decide which engine ``hvdkit run`` starts, and check that it is there; imports no framework.

    Args:
        engine: ``auto`` or the name of an engine.
        processes: How many are wanted.
        library: ``torch``, ``tf``, ``jax``, or None if it is not known.

    Raises:
        EngineError: The engine is unknown, not installed, or does not carry this library's tensors.
        LaunchError: Engine ``serial`` is to run more than one process.
    """
    if engine == "auto":
        return _installed(processes, library)
    spec = spec_of(engine)
    if spec.is_alone and processes != 1:
        raise LaunchError(f"engine {engine} is one process, not {processes}; use -np 1 or another engine")
    _check_carries(spec, library)
    if problem := spec.obstacle(library, None):
        raise EngineError(f"engine {engine}: {problem}")
    return Choice(engine, "asked for")


def _launched(library: str | None, launcher: str) -> Choice:
    """Take the first engine under a launcher that has no obstacle; else the first, which says what is wrong."""
    under = [spec for spec in _several(library) if launcher in spec.launchers] or [
        spec for spec in SPECS if launcher in spec.launchers
    ]
    fit = [spec for spec in under if not spec.obstacle(library, launcher)]
    spec = (fit or under)[0]
    also = f", and {spec.presence(library)}" if len(fit) > 1 else ""
    return Choice(spec.name, f"started by {launcher}{also}")


def _installed(processes: int, library: str | None) -> Choice:
    if processes == 1:
        return Choice("serial", "one process needs no other")
    for spec in _several(library):
        if not spec.obstacle(library, None):
            return Choice(spec.name, spec.presence(library))
    raise EngineError(f"no engine for {processes} processes is installed; pip install 'hvdkit[mpi]'")


def _several(library: str | None) -> list[Spec]:
    """Return the engines for several processes that carry a library's tensors."""
    return [spec for spec in serving(library) if not spec.is_alone]


def _check_carries(spec: Spec, library: str | None) -> None:
    if library is not None and library not in spec.channels:
        served = ", ".join(other.name for other in _several(library))
        raise EngineError(f"engine {spec.name!r} cannot carry tensors of {library!r}; use one of {served}")


def _check_launcher(spec: Spec, launcher: str) -> None:
    if launcher in spec.launchers:
        return
    starters = [name for name in spec.launchers if name != "plain"]
    hint = f"start it with {' or '.join(starters)}" if starters else "start it with plain python"
    raise LaunchError(
        f"engine {spec.name!r} does not run under {launcher}; {hint}, or with: hvdkit run --engine {spec.name}"
    )


def create(choice: Choice, library: str | None, launched: LaunchedAs | None = None) -> Engine:
    """Start an engine, and check that it finds as many processes as the launcher started.

    Raises:
        EngineError: The engine cannot start.
        LaunchError: The engine finds another number of processes.
    """
    launched = launched or launched_as()
    engine = spec_of(choice.engine).start(library, launched)
    if engine.size != launched.size:
        raise LaunchError(
            f"{launched.launcher} started {launched.size} processes but engine {engine.name!r} finds {engine.size}; "
            f"use the launcher that belongs to the engine, or: hvdkit run -np {launched.size} --engine {engine.name}"
        )
    return engine
