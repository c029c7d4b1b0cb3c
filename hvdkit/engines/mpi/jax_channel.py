"""JAX arrays on the CPU over MPI: one ordered host call for each reduction."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.experimental import io_callback

from hvdkit.engines.base import Engine
from hvdkit.engines.channel import Channel
from hvdkit.engines.mpi.engine import MpiEngine
from hvdkit.errors import EngineError


class JaxMpiChannel(Channel):
    """Sums on the host; calls are ordered, so all ranks make them in the same order."""

    fp16 = False

    def __init__(self, engine: Engine) -> None:
        assert isinstance(engine, MpiEngine)
        super().__init__(engine)
        self._meet = engine.meet
        self._communicator = engine.communicator.Dup()

    def start_allreduce(self, flat: Any) -> Any:
        """Return the sum."""
        return io_callback(self._sum, jax.ShapeDtypeStruct(flat.shape, flat.dtype), flat, ordered=True)

    def wait(self, handle: Any) -> Any:
        """Return the sum."""
        return handle

    def allgather(self, tensor: Any) -> Any:
        """Refuse: JAX has no sparse gradients in Keras.

        Raises:
            EngineError: Always.
        """
        raise EngineError("sparse gradients are not available on JAX; use dense embeddings")

    def _sum(self, flat: Any) -> Any:
        from mpi4py import MPI

        source = np.ascontiguousarray(flat)
        total = np.empty_like(source)
        with self.engine.waiting("the reduction of gradients"):
            self._meet(self._communicator)
            self._communicator.Allreduce(source, total, MPI.SUM)
        return total
