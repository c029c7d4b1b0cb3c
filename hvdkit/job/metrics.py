"""Step 8: metrics by sums and counts, in float64, over batches and over ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hvdkit.errors import RecipeError
from hvdkit.job.world import World


class Sums:
    """Sums and counts of named values; adding batches and ranks gives the mean over samples."""

    def __init__(self) -> None:
        self._totals: dict[str, tuple[float, float]] = {}

    def add(self, name: str, total: float, count: float) -> None:
        """Add ``total``, the sum over ``count`` samples."""
        held, number = self._totals.get(name, (0.0, 0.0))
        self._totals[name] = (held + float(total), number + float(count))

    def add_totals(self, totals: Mapping[str, Sequence[float]]) -> None:
        """Add what :meth:`totals` of other sums returned."""
        for name, (total, count) in totals.items():
            self.add(name, total, count)

    def totals(self) -> dict[str, list[float]]:
        """Return sum and count of every name."""
        return {name: list(entry) for name, entry in self._totals.items()}

    def count(self, name: str) -> float:
        """Return how many samples stand behind a value."""
        return self._totals.get(name, (0.0, 0.0))[1]

    def means(self) -> dict[str, float]:
        """Return the mean of each value, NaN where nothing was counted."""
        return {name: total / count if count else float("nan") for name, (total, count) in self._totals.items()}

    def over_ranks(self, world: World) -> Sums:
        """Return the sums over all ranks, formed in rank order with one exchange; ranks may hold different names."""
        joined = Sums()
        for totals in world.engine.allgather_object(self._totals):
            joined.add_totals(totals)
        return joined


def average(world: World, metrics: Any, count: float = 1) -> Any:
    """Average numbers or arrays of all ranks, weighted by counts.

    Args:
        world: The job.
        metrics: A number, an array, or a dict of them, the same names on all ranks.
        count: How many samples stand behind this rank's values.

    Returns:
        A float for a number or a single-element array, a float64 array for other arrays, a dict for a dict; complex
        and complex128 for what is complex.

    Raises:
        RecipeError: The count is negative, or zero on all ranks, or names or shapes differ between ranks.
    """
    if not count >= 0:
        raise RecipeError(f"average got count={count!r}; it must be a number >= 0")
    values = dict(metrics) if isinstance(metrics, Mapping) else {"": metrics}
    arrays = {name: _in_double(value) for name, value in values.items()}
    gathered = world.engine.allgather_object((arrays, float(count)))
    _check_alike([entry for entry, _ in gathered])
    total = 0.0
    sums = {name: np.zeros_like(value) for name, value in arrays.items()}
    for other, number in gathered:
        total += number
        for name in sums:
            # what stands for no sample may be NaN
            sums[name] = sums[name] + other[name] * number if number else sums[name]
    if total == 0:
        raise RecipeError("average got count=0 on every rank; there is nothing to average")
    means = {name: _plain(value / total) for name, value in sums.items()}
    return means if isinstance(metrics, Mapping) else means[""]


def _in_double(value: Any) -> Any:
    return np.asarray(value, np.complex128 if np.iscomplexobj(value) else np.float64)


def _check_alike(values: list[dict[str, Any]]) -> None:
    for rank, other in enumerate(values):
        for name in [*values[0], *other]:
            if name not in other or name not in values[0]:
                raise RecipeError(
                    f"average: metric {name!r} is not there on every rank; pass the same names everywhere"
                )
            if other[name].shape != values[0][name].shape:
                raise RecipeError(
                    f"average: metric {name!r} has shape {values[0][name].shape} on rank 0 and {other[name].shape} on "
                    f"rank {rank}; pass the same shape everywhere"
                )


def _plain(value: Any) -> Any:
    return value.reshape(()).item() if np.size(value) == 1 else value
