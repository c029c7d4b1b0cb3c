"""Distances between named arrays, in float64 NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvdkit.tools.verification.storage import Arrays


def distance(a: Arrays, b: Arrays, start: Arrays) -> float:
    """Return ||a - b|| / ||b - start|| over all arrays that both have; NaN where ``b`` has not moved and ``a`` has.

    Without the denominator any fault would pass with a small enough learning rate.
    """
    names = [name for name in b if name in a]
    apart = _norm([_minus(a[name], b[name]) for name in names])
    moved = moved_by({name: b[name] for name in names}, start)
    if apart == 0:
        return 0.0
    return apart / moved if moved else float("nan")


def moved_by(arrays: Arrays, start: Arrays) -> float:
    """Return the way that arrays have gone from the start; what was not there then has come from 0."""
    return _norm(
        [_minus(value, start[name]) if name in start else value.astype(np.float64) for name, value in arrays.items()]
    )


def largest(a: Arrays, b: Arrays, name: str) -> float:
    """Return the largest difference of one array's elements."""
    if name not in a or name not in b or a[name].shape != b[name].shape:
        return float("inf")
    # what is not a number on one side only is as far apart as can be
    return float(np.max(np.nan_to_num(np.abs(_minus(a[name], b[name])), nan=np.inf), initial=0.0))


def amount(size: float) -> str:
    """Return a difference of :func:`largest` in words."""
    return f"by {size:.1e}" if np.isfinite(size) else "in shape or numbers, or is missing"


def first_apart(a: Arrays, b: Arrays, start: Arrays, limit: float) -> str | None:
    """Return the first array that is further apart than ``limit``, else the one that is furthest."""
    found = {name: distance({name: a[name]}, {name: b[name]}, start) for name in b if name in a}
    for name, value in found.items():
        if not value <= limit:
            return name
    return max(found, key=lambda name: found[name]) if found else None


def _minus(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    return a.astype(np.float64) - b.astype(np.float64)


def _norm(parts: list[NDArray[Any]]) -> float:
    return float(np.sqrt(sum(float(np.sum(np.square(part))) for part in parts)))
