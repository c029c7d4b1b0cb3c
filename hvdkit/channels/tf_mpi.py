"""TensorFlow tensors on the CPU over MPI: one host call for each reduction."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from hvdkit.channels.base import Channel
from hvdkit.engines.base import Engine
from hvdkit.engines.mpi import MpiEngine


class TfMpiChannel(Channel):
    """Sums on the host, in a stateful function, so that all ranks keep the order of the graph."""

    fp16 = False

    def __init__(self, engine: Engine) -> None:
        assert isinstance(engine, MpiEngine)
        super().__init__(engine)
        self._communicator = engine.communicator.Dup()

    def start_allreduce(self, flat: Any) -> Any:
        """Return the sum."""
        total = tf.numpy_function(self._sum, [flat], flat.dtype, stateful=True)
        total.set_shape(flat.shape)
        return total

    def wait(self, handle: Any) -> Any:
        """Return the sum."""
        return handle

    def allgather(self, tensor: Any) -> Any:
        """Concatenate tensors of all ranks along the first axis."""
        joined = tf.numpy_function(self.engine.allgather, [tensor], tensor.dtype, stateful=True)
        joined.set_shape([None, *tensor.shape[1:]])
        return joined

    def _sum(self, flat: Any) -> Any:
        from mpi4py import MPI

        total = np.empty_like(flat)
        with self.engine.waiting("the reduction of gradients"):
            self._communicator.Allreduce(np.ascontiguousarray(flat), total, MPI.SUM)
        return total
