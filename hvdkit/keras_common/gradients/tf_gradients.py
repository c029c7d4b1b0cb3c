"""Gradients as one flat TensorFlow tensor."""

from __future__ import annotations

import inspect
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import control_flow_util

from hvdkit.errors import ModelError

NEXT_TO_NOTHING = 2.0**-60  # a power of two, by which no number loses a digit

_LIBRARIES = {"tensorflow", "keras", "tf_keras"}


def as_tensor(gradient: Any) -> Any:
    """Return a gradient, which may be an array, as a tensor."""
    return gradient if is_sparse(gradient) else tf.convert_to_tensor(gradient)


def is_sparse(gradient: Any) -> bool:
    """Say whether a gradient has only some of its rows."""
    return isinstance(gradient, tf.IndexedSlices)


def runs_at_once() -> bool:
    """Say whether operations run as they are called, rather than being traced."""
    return bool(tf.executing_eagerly())


def at_once() -> Any:
    """Return a context in which operations run as they are called, also while a function is traced."""
    return tf.init_scope()


def untrained_variable(value: Any, dtype: Any) -> Any:
    """Return a new variable, also while a ``tf.function`` is traced, which is not traced once more for it."""
    # what traces sees the variables that its own thread makes
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(tf.Variable, value, trainable=False, dtype=dtype).result()


def place_in_trace() -> tuple[Any, Any, Any]:
    """Return the graph under way, the innermost ``tf.function``, and the lines of the program that lead here from it.

    The last two are the same each time that the function is traced.
    """
    site, function, frame = [], None, inspect.currentframe()
    while frame is not None and function is None:
        if frame.f_globals.get("__name__", "").split(".")[0] not in _LIBRARIES:
            site.append((frame.f_code.co_name, frame.f_lineno))
        owner = frame.f_locals.get("self")
        function = owner if isinstance(owner, tf.types.experimental.PolymorphicFunction) else None
        frame = frame.f_back
    return tf.compat.v1.get_default_graph(), function, tuple(site)


def as_rows(gradient: Any, variable: Any) -> tf.IndexedSlices:
    """Return a variable's gradient, or zero for None, as one with only some of its rows."""
    shape = tf.TensorShape(variable.shape)
    if gradient is None:
        gradient = tf.IndexedSlices(tf.zeros([0, *shape[1:]], variable.dtype), tf.zeros([0], tf.int64))
    elif not is_sparse(gradient):
        gradient = tf.IndexedSlices(gradient, tf.range(tf.shape(gradient, tf.int64)[0]))
    whole = tf.constant(shape.as_list(), tf.int64) if shape.is_fully_defined() else gradient.dense_shape
    return tf.IndexedSlices(gradient.values, tf.cast(gradient.indices, tf.int64), whole)


def as_whole(gradient: Any, variable: Any) -> Any:
    """Return a variable's gradient, or zero for None, as a dense tensor."""
    if gradient is not None:
        return tf.convert_to_tensor(gradient)
    shape = tf.TensorShape(variable.shape)
    return tf.zeros(shape, variable.dtype) if shape.is_fully_defined() else tf.zeros_like(variable)


def scalar(value: Any, dtype: Any = tf.float32) -> Any:
    """Return a number as a tensor."""
    return tf.cast(value, dtype)


def length(outputs: Any) -> Any:
    """Return the number of samples in a batch, as float32."""
    return scalar(outputs.shape[0] if outputs.shape[0] is not None else tf.shape(outputs)[0])


def is_number(tensor: Any) -> bool:
    """Say whether a tensor has no axes."""
    return bool(tensor.shape.rank == 0)


def size(tensor: Any) -> Any:
    """Return the number of entries, as float32."""
    known = tensor.shape.num_elements()
    return scalar(tf.size(tensor) if known is None else known)


def per_sample(tensor: Any) -> int | None:
    """Return the number of entries of one sample, None if it varies."""
    found: int | None = tensor.shape[1:].num_elements()
    return found


def sum_of(tensor: Any) -> Any:
    """Return the sum of all entries, as float32."""
    return tf.reduce_sum(scalar(tensor))


def above_zero(count: Any) -> Any:
    """Return next to nothing for 0, so that where no rank counts anything, they still have a mean."""
    return tf.where(tf.equal(count, 0), NEXT_TO_NOTHING, count)


def if_any(value: Any, count: Any) -> Any:
    """Return 0 for the value of what counts 0 times, which may be NaN, else the value."""
    return tf.math.multiply_no_nan(value, tf.cast(tf.not_equal(count, 0), value.dtype))


def any_real(weights: Any) -> Any:
    """Return 0.0 if all weights are hvdkit's own -0.0, of repeated samples, else 1.0."""
    repeated = tf.logical_and(tf.equal(weights, 0), tf.less(1 / weights, 0))
    return 1 - scalar(tf.reduce_all(repeated))


def any_weight(weights: Any) -> Any:
    """Return 1.0 if any sample counts, else 0.0: a rank without a sample repeats one that does not."""
    return scalar(tf.reduce_any(tf.not_equal(weights, 0)))


def largest(weights: Any) -> Any:
    """Return the largest weight, as float32."""
    return scalar(tf.reduce_max(weights))


def weigh(tensor: Any, weight: Any) -> Any:
    """Return a tensor times a number; 0 times NaN or infinity is 0, for what stands for no sample counts nothing."""
    return tf.math.multiply_no_nan(tensor, tf.cast(weight, tensor.dtype))


def sum_of_sizes(gradient: Any) -> Any:
    """Return the sum of absolute values, as float64."""
    return tf.reduce_sum(scalar(tf.abs(gradient), tf.float64))


def flatten(gradients: list[Any], numbers: list[Any]) -> Any:
    """Join gradients times the first of ``numbers``, and these numbers, into one tensor; without any, gradients alone.

    The result has the widest floating-point type among them, at least float32; complex numbers are pairs.

    Raises:
        ModelError: XLA compiles the function around it.
    """
    _refuse_xla()
    wide = any(gradient.dtype in (tf.float64, tf.complex128) for gradient in gradients)
    dtype = tf.float64 if wide else tf.float32
    parts = [tf.reshape(tf.cast(_in_pairs(gradient), dtype), [-1]) for gradient in gradients]
    if not numbers:
        return tf.concat(parts, 0)
    count = numbers[0]
    if not (isinstance(count, (int, float)) and count == 1):
        # one by one, which TensorFlow does in place
        parts = [weigh(part, count) for part in parts]
    return tf.concat([*parts, tf.stack([scalar(number, dtype) for number in numbers])], 0)


def _refuse_xla() -> None:
    if control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        raise ModelError(
            "XLA cannot compile the reduction of gradients on TensorFlow; use tf.function without jit_compile=True"
        )


def _in_pairs(tensor: Any) -> Any:
    """Return complex numbers as real and imaginary part, in one more axis; what is real stays as it is."""
    return tf.stack([tf.math.real(tensor), tf.math.imag(tensor)], -1) if tensor.dtype.is_complex else tensor


def _from_pairs(tensor: Any, dtype: Any) -> Any:
    """Return what :func:`_in_pairs` made of a tensor of this type, as one."""
    if not dtype.is_complex:
        return tf.cast(tensor, dtype)
    pairs = tf.cast(tensor, dtype.real_dtype)
    return tf.complex(pairs[..., 0], pairs[..., 1])


def unflatten(flat: Any, like: list[Any], divisor: Any = None) -> list[Any]:
    """Cut the beginning of a flat tensor into tensors of the given shapes and types, divided by ``divisor``."""
    if not like:
        return []
    shapes = [[*gradient.shape, 2] if gradient.dtype.is_complex else gradient.shape for gradient in like]
    pieces = tf.split(flat, [*(tf.TensorShape(shape).num_elements() for shape in shapes), -1])[:-1]
    if divisor is not None:
        pieces = [piece / divisor for piece in pieces]
    return [
        _from_pairs(tf.reshape(piece, shape), gradient.dtype)
        for piece, shape, gradient in zip(pieces, shapes, like, strict=True)
    ]


def half(flat: Any, limit: float) -> Any:
    """Return half precision, finite numbers limited; infinities stay infinite."""
    limited = tf.where(tf.math.is_inf(flat), flat, tf.clip_by_value(flat, -limit, limit))
    return tf.cast(limited, tf.float16)


def single(flat: Any) -> Any:
    """Return single precision."""
    return tf.cast(flat, tf.float32)


def clip(gradients: list[Any], limit: float) -> list[Any]:
    """Scale gradients by min(1, limit / norm)."""
    gradients = join_rows(gradients)
    norm = tf.linalg.global_norm(_in_one_type([_in_pairs(_values(gradient)) for gradient in gradients]))
    factor = tf.minimum(tf.ones_like(norm), limit / norm)
    return [
        tf.IndexedSlices(gradient.values * tf.cast(factor, gradient.dtype), gradient.indices, gradient.dense_shape)
        if is_sparse(gradient)
        else gradient * tf.cast(factor, gradient.dtype)
        for gradient in gradients
    ]


def _in_one_type(tensors: list[Any]) -> list[Any]:
    if len({tensor.dtype for tensor in tensors}) == 1:
        return tensors
    widest = tf.float64 if any(tensor.dtype == tf.float64 for tensor in tensors) else tf.float32
    return [tf.cast(tensor, widest) for tensor in tensors]


def _values(gradient: Any) -> Any:
    return gradient.values if is_sparse(gradient) else gradient


def join_rows(gradients: list[Any]) -> list[Any]:
    """Add up rows of the same index in sparse gradients, without which norms and squares would be others."""
    return [_distinct(gradient) if is_sparse(gradient) else gradient for gradient in gradients]


def _distinct(gradient: tf.IndexedSlices) -> tf.IndexedSlices:
    return tf.IndexedSlices(*_joined(gradient.values, gradient.indices), gradient.dense_shape)


def _joined(values: Any, indices: Any) -> tuple[Any, Any]:
    rows, positions = tf.unique(indices)
    return tf.math.unsorted_segment_sum(values, positions, tf.size(rows)), rows


def number_of_rows(gradient: tf.IndexedSlices) -> Any:
    """Return how many rows a sparse gradient has."""
    return tf.shape(gradient.indices)[0]


def reduce_sparse(channel: Any, gradient: tf.IndexedSlices, weight: Any, rows: Any = None) -> tf.IndexedSlices:
    """Return the sum over all ranks of ``weight`` times a sparse gradient.

    Args:
        channel: Moves rows and indices, or where that is less on the wire, the whole gradient.
        gradient: Its rows are distinct, as those of the result, if ``rows`` is given.
        weight: Of this rank.
        rows: How many rows all ranks have together, so that all decide alike; None to gather them as they are.
    """
    narrow = gradient.dtype in (tf.float16, tf.bfloat16)
    values = weigh(_in_pairs(tf.cast(gradient.values, tf.float32) if narrow else gradient.values), weight)
    indices, height, width = gradient.indices, _height(gradient), values.shape[1:].num_elements()
    if rows is None:
        sums = _gathered(channel, values, indices)
    elif height is None or width is None:
        sums = _joined(*_gathered(channel, values, indices))
    else:
        row_bytes = width * values.dtype.size
        sums = tf.cond(
            scalar(rows) * float(row_bytes + indices.dtype.size) > float(height * row_bytes),
            lambda: _summed_whole(channel, values, indices, height),
            lambda: _joined(*_gathered(channel, values, indices)),
        )
    return tf.IndexedSlices(_from_pairs(sums[0], gradient.dtype), sums[1], gradient.dense_shape)


def _gathered(channel: Any, values: Any, indices: Any) -> tuple[Any, Any]:
    all_values = channel.allgather(values)
    with tf.control_dependencies([all_values]):
        return all_values, channel.allgather(indices)


def _height(gradient: tf.IndexedSlices) -> int | None:
    """Return the number of rows of the variable, if it is known."""
    shape = None if gradient.dense_shape is None else tf.get_static_value(gradient.dense_shape)
    return None if shape is None else int(shape[0])


def _summed_whole(channel: Any, values: Any, indices: Any, height: int) -> tuple[Any, Any]:
    """Return the values and indices of those rows of the whole sum that are not 0."""
    whole = tf.math.unsorted_segment_sum(values, indices, height)
    total = tf.reshape(channel.allreduce(tf.reshape(whole, [-1])), whole.shape)
    touched = tf.where(tf.reduce_any(tf.reshape(tf.not_equal(total, 0), [height, -1]), axis=1))[:, 0]
    return tf.gather(total, touched), tf.cast(touched, indices.dtype)
