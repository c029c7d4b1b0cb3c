"""Calls from TensorFlow's graphs to the host, one after another in the order of the program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf


class HostCalls:
    """Orders host calls that meet those of other ranks.

    TensorFlow orders uses of one variable, but not host calls, which would meet those of other ranks crosswise.
    """

    def __init__(self) -> None:
        with tf.init_scope():
            self._turn = tf.Variable(0, trainable=False, dtype=tf.int32)

    def __call__(self, call: Callable[[Any], Any], tensor: Any) -> Any:
        """Return ``call(tensor)``, a tensor of the same type, on the host."""
        if tf.executing_eagerly():
            return tf.numpy_function(call, [tensor], tensor.dtype)
        turn = self._turn.read_value()
        result = tf.numpy_function(lambda value, _: call(value), [tensor, turn], tensor.dtype)
        with tf.control_dependencies([result]):
            self._turn.assign(1 - turn)
        return result
