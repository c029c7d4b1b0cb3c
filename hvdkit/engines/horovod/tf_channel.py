"""TensorFlow tensors over Horovod, also inside a ``tf.function``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from hvdkit.engines.base import Engine
from hvdkit.engines.channel import Channel
from hvdkit.engines.horovod.engine import HorovodEngine
from hvdkit.engines.tf_host_calls import HostCalls


class TfHorovodChannel(Channel):
    """Sums by Horovod's own operation.

    Attributes:
        host_call: Calls the host in the order of the program.
    """

    def __init__(self, engine: Engine) -> None:
        assert isinstance(engine, HorovodEngine)
        super().__init__(engine)
        self._binding = engine.binding
        self.host_call = HostCalls()
        with tf.init_scope():
            self._length = tf.Variable([-1], trainable=False, dtype=tf.int32)

    def start_allreduce(self, flat: Any) -> Any:
        """Return the sum; TensorFlow orders it among the other operations."""
        total = self._watched(
            "the reduction of gradients", flat, lambda tensor: self._binding.allreduce(tensor, op=self._binding.Sum)
        )
        total.set_shape(flat.shape)
        return total

    def wait(self, handle: Any) -> Any:
        """Return the sum."""
        return handle

    def allgather(self, tensor: Any) -> Any:
        """Concatenate tensors of all ranks along the first axis."""
        joined = self._watched("the gathering of sparse gradients", tensor, self._binding.allgather)
        joined.set_shape([None, *tensor.shape[1:]])
        return joined

    def _watched(self, what: str, tensor: Any, operation: Callable[[Any], Any]) -> Any:
        """Run an operation of Horovod, marked as a wait from the host while it runs."""
        control = self.engine.control
        if control is None or tf.executing_eagerly():
            with self.engine.waiting(what):
                return operation(self._changing(tensor))
        with tf.control_dependencies([tensor]):
            begun = self._mark(lambda: control.begin(what))
        with tf.control_dependencies([begun]):
            result = operation(self._changing(tensor))
        with tf.control_dependencies([result]):
            ended = self._mark(control.end)
        with tf.control_dependencies([ended]):
            return tf.identity(result)

    def _mark(self, change: Callable[[], None]) -> Any:
        def call(nothing: Any) -> Any:
            change()
            return nothing

        return self.host_call(call, tf.constant(0))

    def _changing(self, tensor: Any) -> Any:
        """Let a tensor depend on a variable.

        TensorFlow takes Horovod's operations for pure: with a constant input, such as the gradient of a rank that
        touches no row, it would run one once and keep the result, and the other ranks would wait for it ever after.
        """
        if tf.executing_eagerly():
            return tensor
        return tf.reshape(tensor, tf.concat([self._length.read_value(), tf.shape(tensor)[1:]], 0))
