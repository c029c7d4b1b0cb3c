"""Limits in seconds, of two kinds.

``HANG_SECONDS`` ends what would never end: far more than anything takes on a loaded machine, so that it tells nothing
about speed. A promise ("all ranks end within 15 s") is made for a job that has its cores; the fixture ``promised``
grants it as much more time as the machine was seen to be short of, in the seconds that the promise is about.
"""

from __future__ import annotations

import threading
import time

HANG_SECONDS = 300.0
# from a failure, or a signal, to the last process of the job (docs/launching.md)
PROMISED_SECONDS = 15.0
_BURST, _PAUSE = 0.05, 0.5


class Calibration:
    """Measures, again and again, how long a fixed piece of work takes here compared with the CPU time that it needs."""

    def __init__(self) -> None:
        self._samples: list[tuple[float, float, float]] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._measure, daemon=True)

    def __enter__(self) -> Calibration:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def slowdown(self, since: float = 0.0) -> float:
        """Return wall time by CPU time, at least 1, from a moment of ``time.time()`` on."""
        chosen = [sample for sample in self._samples if sample[0] >= since] or self._samples[-1:]
        return max(1.0, sum(wall for _, wall, _ in chosen) / sum(cpu for *_, cpu in chosen)) if chosen else 1.0

    def __call__(self, seconds: float, since: float = 0.0) -> float:
        """Return how long something that is promised within ``seconds`` may take on this machine as it is now."""
        return seconds * self.slowdown(since)

    def _measure(self) -> None:
        while not self._stopped.wait(_PAUSE):
            wall, cpu = time.perf_counter(), time.thread_time()
            while time.thread_time() - cpu < _BURST:
                pass
            self._samples.append((time.time(), time.perf_counter() - wall, time.thread_time() - cpu))
