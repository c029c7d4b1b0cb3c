"""Arrays as ``fit`` takes them, and what tells whether ranks hold the same."""

from __future__ import annotations

from typing import Any

import numpy as np

from hvdkit.keras_common.compat import keras
from hvdkit.recipe.trees import leaves, map_tree
from hvdkit.training.same_data import fingerprint

BATCH_SIZE = 32  # that of fit, where nobody says


def length_of(arrays: list[Any]) -> int | None:
    """Return the length that all arrays have; None if they are no arrays."""
    lengths = {_samples(leaf) for tree in arrays for leaf in leaves(tree)}
    return lengths.pop() if len(lengths) == 1 else None


def _samples(leaf: Any) -> int | None:
    shape = getattr(leaf, "shape", None)
    return int(shape[0]) if shape is not None and len(shape) else None


def fingerprint_of(arrays: list[Any], length: int | None) -> Any:
    """Return what arrays have alike on ranks that hold the same; None if they are no arrays."""
    if length is None:
        return None
    return fingerprint(length, lambda places: [_row(arrays, place) for place in places])


def _row(arrays: list[Any], place: int) -> Any:
    return map_tree(lambda leaf: _array(leaf.iloc[place] if hasattr(leaf, "iloc") else leaf[place]), arrays)


def on_host(tree: Any) -> Any:
    """Return arrays of NumPy, floating-point ones in the precision in which ``fit`` would take them."""
    return map_tree(_array, tree)


def _array(leaf: Any) -> Any:
    array = np.asarray(leaf.detach().cpu() if hasattr(leaf, "detach") else leaf)
    return array.astype(keras().backend.floatx(), copy=False) if array.dtype == np.float64 else array
