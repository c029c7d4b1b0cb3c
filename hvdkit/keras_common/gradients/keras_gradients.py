"""Gradients as one flat tensor by ``keras.ops``, for Keras on torch and JAX."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import keras
from keras import ops

NEXT_TO_NOTHING = 2.0**-60  # a power of two, by which no number loses a digit


def as_tensor(gradient: Any) -> Any:
    """Return a gradient, which may be an array, as a tensor."""
    return ops.convert_to_tensor(gradient)


def runs_at_once() -> bool:
    """Say whether operations run as they are called, rather than being traced."""
    return True


def at_once() -> Any:
    """Return a context in which operations run as they are called, also while a function is traced."""
    if keras.backend.backend() == "jax":
        import jax

        return jax.ensure_compile_time_eval()
    return contextlib.nullcontext()


def as_whole(gradient: Any, variable: Any) -> Any:
    """Return a variable's gradient, or zero for None, as a dense tensor."""
    return ops.zeros(variable.shape, variable.dtype) if gradient is None else gradient


def is_sparse(_gradient: Any) -> bool:
    """Say whether a gradient has only some of its rows; here none has."""
    return False


def join_rows(gradients: list[Any]) -> list[Any]:
    """Return gradients as they are; rows of the same index are in sparse ones alone."""
    return list(gradients)


def scalar(value: Any, dtype: Any = "float32") -> Any:
    """Return a number as a tensor."""
    return ops.cast(value, str(dtype).removeprefix("torch."))


def length(outputs: Any) -> Any:
    """Return the number of samples in a batch."""
    return int(outputs.shape[0])


def is_number(tensor: Any) -> bool:
    """Say whether a tensor has no axes."""
    return len(tensor.shape) == 0


def size(tensor: Any) -> Any:
    """Return the number of entries."""
    return math.prod(tensor.shape)


def per_sample(tensor: Any) -> int | None:
    """Return the number of entries of one sample."""
    return math.prod(tensor.shape[1:])


def sum_of(tensor: Any) -> Any:
    """Return the sum of all entries, as float32."""
    return ops.sum(scalar(tensor))


def above_zero(count: Any) -> Any:
    """Return next to nothing for 0, so that where no rank counts anything, they still have a mean."""
    return ops.where(ops.equal(count, 0), NEXT_TO_NOTHING, count)


def if_any(value: Any, _count: Any) -> Any:
    """Return the value, which Keras 3 never lets become NaN where it counts 0 times."""
    return value


def any_real(weights: Any) -> Any:
    """Return 0.0 if all weights are hvdkit's own -0.0, of repeated samples, else 1.0."""
    weights = ops.convert_to_tensor(weights)
    repeated = ops.logical_and(ops.equal(weights, 0), ops.less(1 / weights, 0))
    return 1 - scalar(ops.all(repeated))


def any_weight(weights: Any) -> Any:
    """Return 1.0 if any sample counts, else 0.0: a rank without a sample repeats one that does not."""
    return scalar(ops.any(ops.not_equal(weights, 0)))


def largest(weights: Any) -> Any:
    """Return the largest weight."""
    return scalar(ops.max(weights))


def weigh(tensor: Any, weight: Any) -> Any:
    """Return a tensor times a number."""
    return tensor * weight


def sum_of_sizes(gradient: Any) -> Any:
    """Return the sum of absolute values."""
    return ops.sum(ops.abs(gradient))


def flatten(gradients: list[Any], numbers: list[Any]) -> Any:
    """Join gradients times the first of ``numbers``, and these numbers, into one tensor; without any, gradients alone.

    The result is float64 if one of them is that wide, else float32; complex numbers are pairs.
    """
    dtype = "float64" if any(_dtype(gradient) in ("float64", "complex128") for gradient in gradients) else "float32"
    parts = [ops.reshape(ops.cast(_in_pairs(gradient), dtype), (-1,)) for gradient in gradients]
    if not numbers:
        return ops.concatenate(parts)
    tail = ops.stack([ops.cast(number, dtype) for number in numbers])
    if not (isinstance(numbers[0], (int, float)) and numbers[0] == 1):
        parts = [weigh(part, tail[0]) for part in parts]
    return ops.concatenate([*parts, tail])


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _is_complex(tensor: Any) -> bool:
    return _dtype(tensor).startswith("complex")


def _in_pairs(tensor: Any) -> Any:
    return ops.stack([ops.real(tensor), ops.imag(tensor)], -1) if _is_complex(tensor) else tensor


def unflatten(flat: Any, like: list[Any], divisor: Any = None) -> list[Any]:
    """Cut the beginning of a flat tensor into tensors of the given shapes and types, divided by ``divisor``."""
    result, start = [], 0
    for gradient in like:
        shape = (*gradient.shape, 2) if _is_complex(gradient) else tuple(gradient.shape)
        length = math.prod(shape)
        piece = ops.reshape(flat[start : start + length], shape)
        if divisor is not None:
            piece = piece / divisor
        if _is_complex(gradient):
            piece = ops.cast(piece[..., 0], _dtype(gradient)) + 1j * ops.cast(piece[..., 1], _dtype(gradient))
        result.append(ops.cast(piece, _dtype(gradient)))
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
    norm = ops.sqrt(sum(ops.sum(ops.square(_in_pairs(gradient))) for gradient in gradients))
    factor = ops.minimum(1.0, limit / norm)
    return [gradient * factor for gradient in gradients]
