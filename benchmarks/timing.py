"""Times of loops that take turns in one process."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable


def microseconds(run: Callable[[], None], count: int) -> float:
    """Return the time of one of ``count`` steps."""
    began = time.perf_counter()
    run()
    return (time.perf_counter() - began) / count * 1e6


def interleaved(runs: dict[str, Callable[[], None]], count: int, rounds: int) -> dict[str, float]:
    """Return each run's median time of a step; the first round is left out."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds + 1):
        for name, run in runs.items():
            spent = microseconds(run, count)
            if number:
                times[name].append(spent)
    return {name: statistics.median(values) for name, values in times.items()}


def spread(values: list[float], digits: int = 2) -> str:
    """Return the median of some rounds, with the lowest and the highest, as text."""
    middle, low, high = (f"{value:,.{digits}f}" for value in (statistics.median(values), min(values), max(values)))
    return f"{middle} ({low}-{high})"


def ratios(rounds: dict[str, list[float]], name: str, base: str) -> str:
    """Return the ratio of two methods within each round as text, empty if one of them was not measured."""
    if name not in rounds or base not in rounds or name == base:
        return ""
    return spread([one / other for one, other in zip(rounds[name], rounds[base], strict=True)])
