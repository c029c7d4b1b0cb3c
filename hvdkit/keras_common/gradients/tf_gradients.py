"""Gradients as one flat TensorFlow tensor."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.ops import control_flow_util

from hvdkit.errors import ModelError


def as_tensor(gradient: Any) -> Any:
    """Return a gradient, which may be an array, as a tensor."""
    return gradient if is_sparse(gradient) else tf.convert_to_tensor(gradient)


def is_sparse(gradient: Any) -> bool:
    """Say whether a gradient has only some of its rows."""
    return isinstance(gradient, tf.IndexedSlices)


def scalar(value: Any, dtype: Any = tf.float32) -> Any:
    """Return a number as a tensor."""
    return tf.cast(value, dtype)


def length(outputs: Any) -> Any:
    """Return the number of samples in a batch, as float32."""
    return scalar(outputs.shape[0] if outputs.shape[0] is not None else tf.shape(outputs)[0])


def any_weight(weights: Any) -> Any:
    """Return 1.0 if any sample counts, else 0.0: a rank without a sample repeats one that does not."""
    return scalar(tf.reduce_any(tf.not_equal(weights, 0)))


def largest(weights: Any) -> Any:
    """Return the largest weight, as float32."""
    return scalar(tf.reduce_max(weights))


def flatten(gradients: list[Any], count: Any) -> Any:
    """Join gradients times ``count``, and the count itself, into one tensor; without a count, the gradients alone.

    The result has the widest floating-point type among them, at least float32.

    Raises:
        ModelError: XLA compiles the function around it.
    """
    _refuse_xla()
    dtype = tf.float64 if any(gradient.dtype == tf.float64 for gradient in gradients) else tf.float32
    parts = [tf.reshape(tf.cast(gradient, dtype), [-1]) for gradient in gradients]
    if count is None:
        return tf.concat(parts, 0)
    number = scalar(count, dtype)
    if not (isinstance(count, (int, float)) and count == 1):
        # one by one, which TensorFlow does in place
        parts = [part * number for part in parts]
    return tf.concat([*parts, number[None]], 0)


def _refuse_xla() -> None:
    if control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        raise ModelError(
            "XLA cannot compile the reduction of gradients on TensorFlow; use tf.function without jit_compile=True"
        )


def unflatten(flat: Any, like: list[Any], divisor: Any = None) -> list[Any]:
    """Cut the beginning of a flat tensor into tensors of the given shapes and types, divided by ``divisor``."""
    sizes = [gradient.shape.num_elements() for gradient in like]
    pieces = tf.split(flat, [*sizes, -1])[:-1]
    if divisor is not None:
        pieces = [piece / divisor for piece in pieces]
    return [
        tf.cast(tf.reshape(piece, gradient.shape), gradient.dtype) for piece, gradient in zip(pieces, like, strict=True)
    ]


def half(flat: Any, limit: float) -> Any:
    """Return half precision, finite numbers limited; infinities stay infinite."""
    limited = tf.where(tf.math.is_inf(flat), flat, tf.clip_by_value(flat, -limit, limit))
    return tf.cast(limited, tf.float16)


def single(flat: Any) -> Any:
    """Return single precision."""
    return tf.cast(flat, tf.float32)


def gather_sparse(channel: Any, gradient: Any, count: Any, total: Any) -> Any:
    """Gather rows and indices of all ranks, weighted; a row may come several times, as in one large batch."""
    weight = scalar(count, gradient.dtype) / tf.cast(total, gradient.dtype)
    values = channel.allgather(gradient.values * weight)
    with tf.control_dependencies([values]):
        indices = channel.allgather(gradient.indices)
    return tf.IndexedSlices(values, indices, gradient.dense_shape)


def clip(gradients: list[Any], limit: float) -> list[Any]:
    """Scale gradients by min(1, limit / norm)."""
    gradients = join_rows(gradients)
    norm = tf.linalg.global_norm(gradients)
    factor = tf.minimum(tf.ones_like(norm), limit / norm)
    return [
        tf.IndexedSlices(gradient.values * tf.cast(factor, gradient.dtype), gradient.indices, gradient.dense_shape)
        if is_sparse(gradient)
        else gradient * tf.cast(factor, gradient.dtype)
        for gradient in gradients
    ]


def join_rows(gradients: list[Any]) -> list[Any]:
    """Add up rows of the same index in sparse gradients, without which norms and squares would be others."""
    return [_distinct(gradient) if is_sparse(gradient) else gradient for gradient in gradients]


def _distinct(gradient: tf.IndexedSlices) -> tf.IndexedSlices:
    rows, positions = tf.unique(gradient.indices)
    summed = tf.math.unsorted_segment_sum(gradient.values, positions, tf.size(rows))
    return tf.IndexedSlices(summed, rows, gradient.dense_shape)
