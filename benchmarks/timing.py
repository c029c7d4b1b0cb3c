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
