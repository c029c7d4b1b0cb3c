"""Torch tensors on the CPU over MPI."""

from __future__ import annotations

from typing import Any

import torch

from hvdkit.engines.base import Engine
from hvdkit.engines.channel import Channel
from hvdkit.engines.mpi.engine import MpiEngine
from hvdkit.errors import EngineError


class TorchMpiChannel(Channel):
    """Sums in place, on the tensor's own memory."""

    fp16 = False

    def __init__(self, engine: Engine) -> None:
        assert isinstance(engine, MpiEngine)
        super().__init__(engine)
        self._wait = engine.wait
        self._communicator = engine.communicator.Dup()

    def start_allreduce(self, flat: Any) -> Any:
        """Start to sum a flat tensor in place.

        Raises:
            EngineError: The tensor lies on a GPU.
        """
        if flat.device.type != "cpu":
            raise EngineError("engine 'mpi' carries CPU tensors only; use engine 'torch' or 'horovod' on GPUs")
        from mpi4py import MPI

        # MPI knows no number of 16 bits
        wide = flat.float() if flat.dtype in (torch.bfloat16, torch.float16) else flat
        return flat, wide, self._communicator.Iallreduce(MPI.IN_PLACE, wide.numpy())

    def wait(self, handle: Any) -> Any:
        """Return the summed tensor."""
        flat, wide, request = handle
        with self.engine.waiting("the reduction of gradients"):
            self._wait(request)
        return flat if wide is flat else flat.copy_(wide)

    def allgather(self, tensor: Any) -> Any:
        """Concatenate tensors of all ranks along the first axis."""
        return torch.from_numpy(self.engine.allgather(tensor.numpy()))
