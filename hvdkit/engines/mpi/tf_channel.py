"""TensorFlow tensors on the CPU over MPI: one host call for each reduction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from hvdkit.engines.base import Engine
from hvdkit.engines.channel import Channel
from hvdkit.engines.mpi.engine import MpiEngine


class TfMpiChannel(Channel):
    """Sums on the host, one after another in the order of the program."""

    fp16 = False

    def __init__(self, engine: Engine) -> None:
        assert isinstance(engine, MpiEngine)
        super().__init__(engine)
        self._communicator = engine.communicator.Dup()
        with tf.init_scope():
            self._turn = tf.Variable(0, trainable=False, dtype=tf.int32)

    def start_allreduce(self, flat: Any) -> Any:
        """Return the sum."""
        total = self._host_call(self._sum, flat)
        total.set_shape(flat.shape)
        return total

    def wait(self, handle: Any) -> Any:
        """Return the sum."""
        return handle

    def allgather(self, tensor: Any) -> Any:
        """Concatenate tensors of all ranks along the first axis."""
        joined = self._host_call(self.engine.allgather, tensor)
        joined.set_shape([None, *tensor.shape[1:]])
        return joined

    def _host_call(self, call: Callable[[Any], Any], tensor: Any) -> Any:
        """Call a function on the host.

        TensorFlow orders uses of one variable, but not host calls, which would meet those of other ranks crosswise.
        """
        if tf.executing_eagerly():
            return tf.numpy_function(call, [tensor], tensor.dtype)
        turn = self._turn.read_value()
        result = tf.numpy_function(lambda value, _: call(value), [tensor, turn], tensor.dtype)
        with tf.control_dependencies([result]):
            self._turn.assign(1 - turn)
        return result

    def _sum(self, flat: Any) -> Any:
        from mpi4py import MPI

        total = np.empty_like(flat)
        with self.engine.waiting("the reduction of gradients"):
            self._communicator.Allreduce(np.ascontiguousarray(flat), total, MPI.SUM)
        return total
