"""Checks on neutral data, cheap enough to run before every training: two passes over x, one over y, no copies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hvdkit.errors import DataError

if TYPE_CHECKING:
    from hvdkit.recipe.declaration import Data


def check(data: Data, *, least: int = 1, rank: int | None = None) -> None:
    """Refuse neutral data that cannot be trained on.

    Args:
        data: Arrays ``(x, y)`` for train and, unless None, validation. With ``data.classes``, y must be integers in
            0..classes-1 of shape (samples,).
        least: How many training samples are needed, for instance one global batch where incomplete ones are left out.
        rank: How many dimensions x must have, counting the samples; 4 for models that take NHWC images.

    Raises:
        DataError: A part is no pair of arrays, is empty or too small, x and y differ in length, a value is NaN or
            infinite, labels are no integers or out of range, x has another rank, or the samples of train and
            validation differ in shape.
    """
    x, _ = _check_part(data.train, "train", data.classes, rank)
    if len(x) < least:
        raise DataError(
            f"train data has {len(x)} samples but needs {least} or more; use fewer processes or a smaller batch size"
        )
    if data.validation is None:
        return
    validation_x, _ = _check_part(data.validation, "validation", data.classes, rank)
    if validation_x.shape[1:] != x.shape[1:]:
        raise DataError(
            f"train samples have shape {x.shape[1:]} but validation samples {validation_x.shape[1:]}; "
            "give both the same shape"
        )


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


def _check_part(part: Any, name: str, classes: int | None, rank: int | None) -> tuple[NDArray[Any], NDArray[Any]]:
    if not isinstance(part, tuple) or len(part) != 2 or not all(isinstance(side, np.ndarray) for side in part):
        raise DataError(f"{name} data must be a tuple (x, y) of two NumPy arrays, but is {_describe(part)}")
    x, y = part
    for side, array in (("x", x), ("y", y)):
        if array.ndim == 0 or array.size == 0:
            raise DataError(f"{name} data is empty: {side} has shape {array.shape}")
    if len(x) != len(y):
        raise DataError(f"{name} data: x has {len(x)} samples but y has {len(y)}; they must agree")
    if rank is not None and x.ndim != rank:
        hint = "; add the channel with x[..., None]" if (rank, x.ndim) == (4, 3) else ""
        layout = " (samples, height, width, channels)" if rank == 4 else ""
        raise DataError(f"{name} data: x has shape {x.shape} but must have {rank} dimensions{layout}{hint}")
    _check_finite(x, f"{name} data: x")
    if classes is None:
        _check_finite(y, f"{name} data: y")
    else:
        check_labels(y, classes, f"{name} data")
    return x, y


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
