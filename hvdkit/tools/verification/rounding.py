"""What rounding alone can do to a run, measured by a twin whose weights are rounded otherwise.

Before each computation of gradients every weight is moved by up to ``UNITS`` units in the last place, by chance; the
update is made to the weights as they were. Sums in another order move results by about one such unit. More are taken
here, and a small factor for the limit, since a ReLU or a maximum near its edge is turned the more surely.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from hvdkit.tools.verification.distances import distance, moved_by
from hvdkit.tools.verification.runs import Runs
from hvdkit.tools.verification.sketches import CELLS
from hvdkit.tools.verification.storage import Arrays, Snapshot

UNITS, FACTOR, ALONE, FLOOR = 8, 4, 10, 32
SOURCE = f"{FACTOR} x the twin with weights moved by {UNITS} units in the last place, and {FLOOR} eps"
SOURCE_ALONE = f"{ALONE} x the twin with weights moved by {UNITS} units in the last place, and {FLOOR} eps"
"""A single array or number may have been moved little by chance."""

TERMS = 64
"""Units of rounding in the sum of a loss or metric."""

NOISE = 0.01
"""An array is noise if rounding makes more than this share of its way."""

STORED = 4
"""So many weights may be stored one unit apart, however short the way that they went."""


Limits = tuple[frozenset[str], dict[str, float]]


class Rounding:
    """Moves floating-point numbers by up to ``UNITS`` units in the last place, by chance."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)

    def moved(self, value: NDArray[np.generic]) -> NDArray[np.generic]:
        """Return an array rounded otherwise; other than floating-point numbers stay."""
        if value.dtype.kind != "f":
            return value
        steps = self._random.integers(-UNITS, UNITS + 1, value.shape, dtype=np.int8).astype(value.dtype)
        moved: NDArray[np.generic] = value + steps * np.spacing(np.abs(value))
        return moved


def kinds(snapshot: Snapshot, group: str, noisy: frozenset[str]) -> dict[str, Arrays]:
    """Return the arrays of a group by kind, such as first and second moments, each of which has a scale of its own.

    Arrays that are noise are a kind apart. Counters are left out: frameworks keep them in different ways when they
    accumulate.
    """
    found: dict[str, Arrays] = {}
    for name, value in snapshot.arrays(group).items():
        counter = group == "slots" and any(word in name for word in _COUNTERS)
        if value.dtype.kind == "f" and not counter:
            kind = "noise" if name in noisy else _kind(name) if group == "slots" else group
            found.setdefault(kind, {})[name] = value
    return found


_COUNTERS = ("iteration", "learning_rate", "step of ")


def _kind(name: str) -> str:
    return name.partition(" of ")[0] if " of " in name else name.split(":")[0].rstrip("0123456789_ ()").split("_")[-1]


def limits(seen: Runs, group: str) -> list[Limits]:
    """Return after each update, from the first on, which arrays are noise, and the largest right distance of each kind.

    Noise is what rounding alone makes: a bias before BatchNorm has no gradient but rounding, which Adam makes steps of.
    """
    if group not in seen.limits:
        seen.limits[group] = list(_limits(seen, group))
    found: list[Limits] = seen.limits[group]
    return found


def _limits(seen: Runs, group: str) -> Iterator[Limits]:
    eps = float(np.finfo(seen.layout.dtype).eps)
    start = seen.twin.at(0).arrays(group)
    noisy: frozenset[str] = frozenset()
    largest: dict[str, float] = {}
    for update in range(1, seen.updates + 1):
        twin = seen.twin.at(update)
        if update <= seen.rounded.snapshots[-1].update:
            rounded = seen.rounded.at(update)
            noisy |= _noise(twin.arrays(group), rounded.arrays(group), start)
            moved = kinds(rounded, group, noisy)
            for kind, arrays in kinds(twin, group, noisy).items():
                spread = distance(moved.get(kind, {}), arrays, start)
                largest[kind] = max(largest.get(kind, 0.0), spread if np.isfinite(spread) else 0.0)
        found = {}
        for kind, arrays in kinds(twin, group, noisy).items():
            factor = ALONE if kind == "noise" else FACTOR
            found[kind] = factor * largest.get(kind, 0.0) + FLOOR * eps + stored(arrays, start, eps)
        yield noisy, found


def _noise(twin: Arrays, rounded: Arrays, start: Arrays) -> set[str]:
    return {
        name
        for name, value in twin.items()
        if value.dtype.kind == "f" and distance({name: rounded[name]}, {name: value}, start) > NOISE
    }


def nearest(first: tuple[float, float], second: tuple[float, float]) -> tuple[float, float]:
    """Return which of two distances, each with its limit, is nearer to it; the second in doubt."""
    return max(second, first, key=lambda pair: pair[0] / pair[1] if pair[1] else 0.0)


def stored(arrays: Arrays, start: Arrays, eps: float) -> float:
    """Return how far apart the storing of numbers alone can bring them, in the measure of distances."""
    way = moved_by(arrays, start)
    # what the storing of some numbers does to a large array is lost in what rounding does to all of it
    held = [np.abs(value) for value in arrays.values() if value.size < CELLS]
    widest = max((float(np.max(value, initial=0.0)) for value in held), default=0.0)
    return STORED * eps * widest / way if way else 0.0


def array_within(seen: Runs, group: str, known: str, update: int, ours: Arrays, due: Arrays) -> bool:
    """Say whether rounding alone can make an array so different at an update.

    Args:
        seen: All runs.
        group: The array's.
        known: What the twin calls it.
        update: After which it stands so.
        ours: Has the array, under its own name.
        due: The same.
    """
    name = known.partition("|")[2] if group == "statistics" else known
    twin, rounded = (log.at(update).arrays(group).get(known) for log in (seen.twin, seen.rounded))
    if twin is None or rounded is None or name not in ours or name not in due or twin.dtype.kind != "f":
        return False
    start = seen.ranks[0].at(0).arrays(group)
    eps = float(np.finfo(seen.layout.dtype).eps)
    spread = distance({name: rounded}, {name: twin}, start)
    limit = ALONE * (spread if np.isfinite(spread) else 0.0) + FLOOR * eps + stored({name: twin}, start, eps)
    return distance({name: ours[name]}, {name: due[name]}, start) <= limit


def metric_within(seen: Runs, name: str, ours: float, due: float) -> bool:
    """Say whether rounding alone can make a metric so different."""
    pairs = zip(seen.twin.facts["epochs"], seen.rounded.facts["epochs"], strict=False)
    spread = max((abs(moved[name] - twin[name]) for twin, moved in pairs if name in twin), default=0.0)
    return abs(ours - due) <= ALONE * spread + TERMS * float(np.finfo(np.float32).eps) * abs(due)
