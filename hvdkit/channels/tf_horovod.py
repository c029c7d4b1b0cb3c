"""TensorFlow tensors over Horovod, also inside a ``tf.function``."""

from __future__ import annotations

from typing import Any

from hvdkit.channels.base import Channel
from hvdkit.engines.base import Engine
from hvdkit.engines.horovod import HorovodEngine


class TfHorovodChannel(Channel):
    """Sums by Horovod's own operation."""

    def __init__(self, engine: Engine) -> None:
        assert isinstance(engine, HorovodEngine)
        super().__init__(engine)
        self._binding = engine.binding

    def start_allreduce(self, flat: Any) -> Any:
        """Return the sum; TensorFlow orders it among the other operations."""
        return self._binding.allreduce(flat, op=self._binding.Sum)

    def wait(self, handle: Any) -> Any:
        """Return the sum."""
        return handle

    def allgather(self, tensor: Any) -> Any:
        """Concatenate tensors of all ranks along the first axis."""
        return self._binding.allgather(tensor)
