"""Torch tensors over Horovod."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import torch

from hvdkit.engines.base import Engine
from hvdkit.engines.channel import Channel
from hvdkit.engines.horovod.engine import HorovodEngine, finish
from hvdkit.engines.horovod.installed import mpi_built
from hvdkit.process.environment import launched_as


@dataclass(frozen=True)
class _Started:
    """An operation under way, and the bfloat16 tensor whose sum it prepares, if there is one."""

    number: int
    handle: Any
    narrow: torch.Tensor | None = None


class TorchHorovodChannel(Channel):
    """Sums in place by Horovod's background thread."""

    bf16 = True

    def __init__(self, engine: Engine) -> None:
        assert isinstance(engine, HorovodEngine)
        super().__init__(engine)
        self._binding = engine.binding
        self._channel_number = next(engine.channel_numbers)
        self._busy: set[int] = set()

    def start_allreduce(self, flat: Any) -> Any:
        """Start to sum a flat tensor in place."""
        if flat.dtype == torch.bfloat16:
            return self._start_exchange(flat)
        return self._start("allreduce_async_", flat, op=self._binding.Sum)

    def start_mean(self, flat: Any) -> Any:
        """Start to average a flat tensor in place; NCCL does it without another pass over the memory."""
        if flat.device.type == "cuda" and flat.dtype != torch.bfloat16:
            return self._start("allreduce_async_", flat, op=self._binding.Average)
        return super().start_mean(flat)

    def start_adasum(self, flat: Any) -> Any:
        """Start Adasum of a flat tensor in place."""
        return self._start("allreduce_async_", flat, op=self._binding.Adasum)

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
            result = self._finish(handle)
            return result if handle.narrow is None else self._joined(handle.narrow, *result)

    def allgather(self, tensor: Any) -> Any:
        """Concatenate tensors of all ranks along the first axis."""
        with self.engine.waiting("the gathering of sparse gradients"):
            return self._finish(self._start("allgather_async", tensor))

    def _start(self, operation: str, tensor: torch.Tensor, **options: Any) -> _Started:
        """Start under the first free name; names that come again every step spare Horovod its negotiation."""
        number = next(number for number in itertools.count() if number not in self._busy)
        self._busy.add(number)
        name = f"hvdkit.channel.{self._channel_number}.{operation}.{number}"
        return _Started(number, getattr(self._binding, operation)(tensor, name=name, **options))

    def _finish(self, started: _Started) -> Any:
        result = finish(self._binding, started.handle)
        self._busy.remove(started.number)
        return result

    def _start_exchange(self, flat: torch.Tensor) -> _Started:
        """Start to send each rank its part of a bfloat16 tensor, as bytes, since Horovod sums none on GPUs."""
        padded = flat.new_zeros(-(-flat.numel() // self.size) * self.size)
        padded[: flat.numel()] = flat
        started = self._start("alltoall_async", padded.view(torch.uint8))
        return _Started(started.number, started.handle, narrow=flat)

    def _joined(self, flat: torch.Tensor, received: torch.Tensor, _splits: torch.Tensor) -> torch.Tensor:
        """Sum this rank's part in float32, and gather all parts."""
        part = received.view(torch.bfloat16).view(self.size, -1).float().sum(0).bfloat16()
        gathered = self._finish(self._start("allgather_async", part.view(torch.uint8)))
        return flat.copy_(gathered.view(torch.bfloat16)[: flat.numel()])
