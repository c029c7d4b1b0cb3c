"""The channel of one process, whatever its library."""

from __future__ import annotations

from typing import Any

from hvdkit.engines.base import Engine
from hvdkit.engines.channel import Channel


class SerialChannel(Channel):
    """One process: every sum is the tensor itself."""

    recordable = True

    def __init__(self, _engine: Engine | None = None) -> None:
        self.size = 1
        self.is_root = True

    def start_allreduce(self, flat: Any) -> Any:
        """Return the tensor as its own handle."""
        return flat

    def check_compression(self, compression: str) -> None:
        """Nothing is sent."""

    def wait(self, handle: Any) -> Any:
        """Return the tensor."""
        return handle

    def allgather(self, tensor: Any) -> Any:
        """Return the tensor."""
        return tensor
