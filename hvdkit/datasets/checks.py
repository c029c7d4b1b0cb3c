"""Checks on neutral data, cheap enough to run before every training: two passes over x, one over y, no copies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hvdkit.errors import DataError
from hvdkit.recipe.trees import leaves, named_leaves

if TYPE_CHECKING:
    from hvdkit.recipe.declaration import Data


def check(data: Data, *, least: int = 1, rank: int | None = None) -> None:
    """Refuse neutral data that cannot be trained on.

    Args:
        data: Arrays ``(x, y)``, trees (tuple, list, dict) of them, or another tuple or dict of arrays, for train and,
            unless None, validation. With ``data.classes``, y must be integers in 0..classes-1 of shape (samples,).
        least: How many training samples are needed, for instance one global batch where incomplete ones are left out.
        rank: How many dimensions x must have, counting the samples; 4 for models that take NHWC images.

    Raises:
        DataError: A part is made of no arrays, is empty or too small, arrays differ in length, a value is NaN or
            infinite, labels are no integers or out of range, x has another rank, or the samples of train and
            validation differ in shape.
    """
    samples, shapes = _check_part(data.train, "train", data.classes, rank)
    if samples < least:
        raise DataError(
            f"train data has {samples} samples but needs {least} or more; use fewer processes or a smaller batch size"
        )
    if data.validation is None:
        return
    _, others = _check_part(data.validation, "validation", data.classes, rank)
    if others != shapes:
        raise DataError(f"train samples have shape {shapes} but validation samples {others}; give both the same shape")


def check_labels(labels: NDArray[Any], classes: int, where: str) -> None:
    """Refuse labels that are not whole numbers in 0..classes-1; ``where`` begins the message.

    Raises:
        DataError: The labels have the wrong type, rank or range; the message names the first wrong one.
    """
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise DataError(
            f"{where}: labels must be integers of shape (samples,), but are {labels.dtype} of shape {labels.shape}"
        )
    if labels.min() < 0 or labels.max() >= classes:
        index = int(np.argmax((labels < 0) | (labels >= classes)))
        raise DataError(
            f"{where}: label {labels[index]} at index {index} is out of range; "
            f"{classes} classes allow 0 to {classes - 1}"
        )


def _check_part(part: Any, name: str, classes: int | None, rank: int | None) -> tuple[int, Any]:
    """Check one part; return how many samples it has, and the shape of one or, of a tree, the shapes by name."""
    arrays = list(leaves(part)) if isinstance(part, (tuple, dict)) else []
    if not arrays or not all(isinstance(array, np.ndarray) for array in arrays):
        raise DataError(f"{name} data must be a tuple (x, y) of two NumPy arrays, but is {_describe(part)}")
    pair = isinstance(part, tuple) and len(part) == 2
    inputs = list(named_leaves(part[0], "x") if pair else named_leaves(part, "data"))
    targets = list(named_leaves(part[1], "y")) if pair else []
    for label, array in (*inputs, *targets):
        if array.ndim == 0 or array.size == 0:
            raise DataError(f"{name} data is empty: {label} has shape {array.shape}")
    (first, x), *others = (*inputs, *targets)
    for label, array in others:
        if len(array) != len(x):
            raise DataError(f"{name} data: {first} has {len(x)} samples but {label} has {len(array)}; they must agree")
    for label, array in inputs:
        _check_rank(array, rank, f"{name} data: {label}")
        _check_finite(array, f"{name} data: {label}")
    for label, array in targets:
        if classes is None:
            _check_finite(array, f"{name} data: {label}")
        else:
            check_labels(array, classes, f"{name} data")
    shapes = {label: array.shape[1:] for label, array in inputs}
    return len(x), shapes if len(shapes) > 1 else x.shape[1:]


def _check_rank(array: NDArray[Any], rank: int | None, where: str) -> None:
    if rank is None or array.ndim == rank:
        return
    hint = "; add the channel with x[..., None]" if (rank, array.ndim) == (4, 3) else ""
    layout = " (samples, height, width, channels)" if rank == 4 else ""
    raise DataError(f"{where} has shape {array.shape} but must have {rank} dimensions{layout}{hint}")


def _check_finite(array: NDArray[Any], where: str) -> None:
    if not np.issubdtype(array.dtype, np.number) and array.dtype != np.bool_:
        raise DataError(f"{where} is of type {array.dtype}; it must hold numbers")
    # min and max hand on NaN, and unlike isfinite need no array of the same length
    if not (np.isfinite(array.min()) and np.isfinite(array.max())):
        index = tuple(int(axis) for axis in np.argwhere(~np.isfinite(array))[0])
        raise DataError(f"{where} holds {array[index]} at index {index}; remove or replace such values")


def _describe(part: Any) -> str:
    if isinstance(part, (tuple, list)):
        return f"a {type(part).__name__} of {', '.join(type(side).__name__ for side in part) or 'nothing'}"
    return f"a {type(part).__name__}"
