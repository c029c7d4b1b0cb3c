"""The engines that there are, in the order in which ``auto`` prefers them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hvdkit.engines.horovod.spec import HOROVOD
from hvdkit.engines.mpi.spec import MPI
from hvdkit.engines.serial.spec import SERIAL
from hvdkit.engines.spec import Spec
from hvdkit.engines.torch_distributed.spec import TORCH
from hvdkit.errors import EngineError

if TYPE_CHECKING:
    from hvdkit.engines.base import Engine
    from hvdkit.engines.channel import Channel

SPECS = [SERIAL, HOROVOD, TORCH, MPI]


def names() -> tuple[str, ...]:
    """Return the names of all engines."""
    return tuple(spec.name for spec in SPECS)


def spec_of(name: str) -> Spec:
    """Return an engine's Spec.

    Raises:
        EngineError: There is no such engine.
    """
    found = next((spec for spec in SPECS if spec.name == name), None)
    if found is None:
        raise EngineError(f"engine {name!r} is unknown; use auto, {', '.join(names())}")
    return found


def libraries() -> tuple[str, ...]:
    """Return the tensor libraries that an engine carries; Keras counts as the one it runs on."""
    return tuple(dict.fromkeys(library for spec in SPECS for library in spec.channels))


def serving(library: str | None) -> list[Spec]:
    """Return the engines that carry a library's tensors; all for None."""
    return [spec for spec in SPECS if library is None or library in spec.channels]


def shared_channel(engine: Engine, library: str) -> Channel:
    """Return the engine's channel for the tensors of ``library`` that all its users share.

    Raises:
        EngineError: The engine does not carry them.
    """
    channel: Channel | None = engine.shared_channels.get(library)
    if channel is None:
        channel = engine.shared_channels[library] = open_channel(engine, library)
    return channel


def open_channel(engine: Engine, library: str) -> Channel:
    """Return the channel for the tensors of ``library`` over an engine.

    Raises:
        EngineError: The engine does not carry them.
    """
    spec = SERIAL if engine.size == 1 else spec_of(engine.name)
    if library not in spec.channels:
        raise EngineError(f"engine {engine.name!r} cannot carry tensors of {library!r}")
    return spec.open_channel(engine, library)
