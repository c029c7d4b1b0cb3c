"""One process: the same surface, nothing to send."""

from __future__ import annotations

from typing import ClassVar

from hvdkit.engines.base import Array, Bytes, Engine
from hvdkit.process.environment import LaunchedAs


class SerialEngine(Engine):
    """The engine of a single process; it depends on nothing."""

    name: ClassVar[str] = "serial"
    rank = 0
    size = 1

    def shutdown(self) -> None:
        """Do nothing."""

    def _do_allreduce(self, flat: Array, op: str) -> Array:
        return flat

    def _do_broadcast(self, flat: Bytes, root: int) -> Bytes:
        return flat

    def _do_allgather(self, flat: Bytes, counts: list[int]) -> Bytes:
        return flat

    def _do_alltoall(self, flat: Bytes, send: list[int], receive: list[int]) -> Bytes:
        return flat


def start(_library: str | None, _launched: LaunchedAs) -> SerialEngine:
    """Start the engine."""
    return SerialEngine()
