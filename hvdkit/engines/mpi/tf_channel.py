"""TensorFlow tensors on the CPU over MPI: one host call for each reduction."""

from __future__ import annotations

from typing import Any

import numpy as np

from hvdkit.engines.base import Engine
from hvdkit.engines.channel import Channel
from hvdkit.engines.mpi.engine import MpiEngine
from hvdkit.engines.tf_host_calls import HostCalls


class TfMpiChannel(Channel):
    """Sums on the host, one after another in the order of the program.

    Attributes:
        host_call: Calls the host in the same order.
    """

    fp16 = False

    def __init__(self, engine: Engine) -> None:
        assert isinstance(engine, MpiEngine)
        super().__init__(engine)
        self._meet = engine.meet
        self._communicator = engine.communicator.Dup()
        self.host_call = HostCalls()

    def start_allreduce(self, flat: Any) -> Any:
        """Return the sum."""
        total = self.host_call(self._sum, flat)
        total.set_shape(flat.shape)
        return total

    def wait(self, handle: Any) -> Any:
        """Return the sum."""
        return handle

    def allgather(self, tensor: Any) -> Any:
        """Concatenate tensors of all ranks along the first axis."""
        joined = self.host_call(self.engine.allgather, tensor)
        joined.set_shape([None, *tensor.shape[1:]])
        return joined

    def _sum(self, flat: Any) -> Any:
        from mpi4py import MPI

        total = np.empty_like(flat)
        with self.engine.waiting("the reduction of gradients"):
            self._meet(self._communicator)
            self._communicator.Allreduce(np.ascontiguousarray(flat), total, MPI.SUM)
        return total
