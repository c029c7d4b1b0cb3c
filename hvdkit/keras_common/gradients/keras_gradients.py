"""Gradients as one flat tensor by ``keras.ops``, for Keras on torch and JAX."""

from __future__ import annotations

import math
from typing import Any

from keras import ops


def as_tensor(gradient: Any) -> Any:
    """Return a gradient, which may be an array, as a tensor."""
    return ops.convert_to_tensor(gradient)


def is_sparse(_gradient: Any) -> bool:
    """Say whether a gradient has only some of its rows; here none has."""
    return False


def scalar(value: Any) -> Any:
    """Return a number as a tensor."""
    return ops.cast(value, "float32")


def length(outputs: Any) -> Any:
    """Return the number of samples in a batch."""
    return int(outputs.shape[0])


def any_weight(weights: Any) -> Any:
    """Return 1.0 if any sample counts, else 0.0: a rank without a sample repeats one that does not."""
    return scalar(ops.any(ops.not_equal(weights, 0)))


def largest(weights: Any) -> Any:
    """Return the largest weight."""
    return scalar(ops.max(weights))


def flatten(gradients: list[Any], count: Any) -> Any:
    """Join gradients times ``count``, and the count itself, into one tensor; without a count, the gradients alone."""
    dtype = "float64" if any("float64" in str(gradient.dtype) for gradient in gradients) else "float32"
    parts = [ops.reshape(ops.cast(gradient, dtype), (-1,)) for gradient in gradients]
    if count is None:
        return ops.concatenate(parts)
    number = ops.reshape(ops.cast(count, dtype), (1,))
    if not (isinstance(count, (int, float)) and count == 1):
        parts = [part * number for part in parts]
    return ops.concatenate([*parts, number])


def unflatten(flat: Any, like: list[Any], divisor: Any = None) -> list[Any]:
    """Cut the beginning of a flat tensor into tensors of the given shapes and types, divided by ``divisor``."""
    result, start = [], 0
    for gradient in like:
        length = math.prod(gradient.shape)
        piece = ops.reshape(flat[start : start + length], gradient.shape)
        if divisor is not None:
            piece = piece / divisor
        result.append(ops.cast(piece, str(gradient.dtype).removeprefix("torch.")))
        start += length
    return result


def half(flat: Any, limit: float) -> Any:
    """Return half precision, finite numbers limited; infinities stay infinite."""
    limited = ops.where(ops.isinf(flat), flat, ops.clip(flat, -limit, limit))
    return ops.cast(limited, "float16")


def single(flat: Any) -> Any:
    """Return single precision."""
    return ops.cast(flat, "float32")


def clip(gradients: list[Any], limit: float) -> list[Any]:
    """Scale gradients by min(1, limit / norm)."""
    norm = ops.sqrt(sum(ops.sum(ops.square(gradient)) for gradient in gradients))
    factor = ops.minimum(1.0, limit / norm)
    return [gradient * factor for gradient in gradients]
