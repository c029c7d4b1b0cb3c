"""Large arrays as short ones that keep distances, so that the weights of every update fit on disk.

An array's elements are added up, each with a random sign, in a fixed number of cells (the sparse form of Johnson and
Lindenstrauss's projection; Achlioptas, 2003; Charikar, Chen and Farach-Colton, 2002). Sketches are linear, so that the
norm of the difference of two of them is that of the arrays' difference, give or take sqrt(2 / cells) of it.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

CELLS = 2048


def sketch(array: NDArray[Any]) -> NDArray[Any]:
    """Return the array itself if it has fewer elements or no real numbers, else ``CELLS`` sums, in float64."""
    if array.size < CELLS or array.dtype.kind != "f":
        return array
    flat = array.reshape(-1)
    rows = -(-flat.size // CELLS)
    total = np.zeros(CELLS)
    for row, signs in enumerate(_signs(rows)):
        part = flat[row * CELLS : (row + 1) * CELLS].astype(np.float64)
        total[: part.size] += part * signs[: part.size]
    return total


@functools.lru_cache(maxsize=64)
def _signs(rows: int) -> NDArray[np.int8]:
    """Return the same signs for arrays of one length, in every process."""
    bits: NDArray[np.int8] = np.random.default_rng(rows).integers(0, 2, (rows, CELLS), np.int8)
    return bits * np.int8(2) - np.int8(1)


def single(leaf: Any) -> NDArray[Any]:
    """Return an array, in float64 as float32, which libraries may make of it."""
    array = np.asarray(leaf)
    return array.astype(np.float32) if array.dtype == np.float64 else array
