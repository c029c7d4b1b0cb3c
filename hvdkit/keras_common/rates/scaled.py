"""Which learning rates ``scale_lr`` has scaled, so that what undoes it can be found."""

from __future__ import annotations

import math
from weakref import WeakKeyDictionary

from hvdkit.job import world as worlds
from hvdkit.job.world import World

_scaled: WeakKeyDictionary[World, list[tuple[float, float]]] = WeakKeyDictionary()


def note_scaled(base: float, target: float) -> None:
    """Remember the rate of one process that a scaled one comes from."""
    if target > base:
        _scaled.setdefault(worlds.current(), []).append((base, target))


def times_scaled() -> int:
    """Return how many rates have been scaled so far."""
    return len(_scaled.get(worlds.current(), []))


def base_of(rate: float) -> float | None:
    """Return the rate of one process that a rate was scaled from; None if ``scale_lr`` has not given it."""
    pairs = _scaled.get(worlds.current(), [])
    return next((base for base, target in pairs if math.isclose(target, rate, rel_tol=1e-6)), None)
