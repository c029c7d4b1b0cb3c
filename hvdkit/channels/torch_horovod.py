"""Torch tensors over Horovod."""

from __future__ import annotations

from typing import Any

from hvdkit.channels.base import Channel
from hvdkit.engines.base import Engine
from hvdkit.engines.horovod import HorovodEngine, finish
from hvdkit.environment import launched_as
from hvdkit.horovod_info import mpi_built


class TorchHorovodChannel(Channel):
    """Sums in place by Horovod's background thread."""

    def __init__(self, engine: Engine) -> None:
        assert isinstance(engine, HorovodEngine)
        super().__init__(engine)
        self._binding = engine.binding
        self._number = next(engine.channel_numbers)
        self._calls = 0

    def _name(self) -> str:
        self._calls += 1
        return f"hvdkit.channel.{self._number}.tensor.{self._calls}"

    def start_allreduce(self, flat: Any) -> Any:
        """Start to sum a flat tensor in place."""
        return self._binding.allreduce_async_(flat, op=self._binding.Sum, name=self._name())

    def start_mean(self, flat: Any) -> Any:
        """Start to average a flat tensor in place; NCCL does it without another pass over the memory."""
        if flat.device.type == "cuda":
            return self._binding.allreduce_async_(flat, op=self._binding.Average, name=self._name())
        return super().start_mean(flat)

    def start_adasum(self, flat: Any) -> Any:
        """Start Adasum of a flat tensor in place."""
        return self._binding.allreduce_async_(flat, op=self._binding.Adasum, name=self._name())

    def check_adasum(self) -> None:
        """Check that Horovod moves its data by MPI, which alone has Adasum.

        Raises:
            EngineError: It does not.
        """
        if not (mpi_built() and launched_as().launcher == "mpirun"):
            super().check_adasum()

    def wait(self, handle: Any) -> Any:
        """Return the summed tensor."""
        with self.engine.waiting("the reduction of gradients"):
            return finish(self._binding, handle)

    def allgather(self, tensor: Any) -> Any:
        """Concatenate tensors of all ranks along the first axis."""
        with self.engine.waiting("the gathering of sparse gradients"):
            return finish(self._binding, self._binding.allgather_async(tensor, name=self._name()))
