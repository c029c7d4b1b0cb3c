"""Something that is due every so many seconds, at updates on which all ranks agree without talking at each."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hvdkit.training.trainer import Trainer


class Pace:
    """Says at which update so many seconds have passed: rank 0 estimates it, and is asked again there.

    Args:
        seconds: How many.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._began, self._first, self._next = time.monotonic(), 0, 1

    def begin(self, trainer: Trainer) -> None:
        """Begin to count anew."""
        self._began, self._first = time.monotonic(), trainer.global_step
        self._next = self._first + 1

    def is_due(self, trainer: Trainer) -> bool:
        """Say whether the time is up; all ranks call it after every update, and get the same answer."""
        step = trainer.global_step
        if step < self._next:
            return False

        def estimate() -> tuple[bool, int]:
            passed = max(time.monotonic() - self._began, 1e-6)
            left = (self._seconds - passed) * max(step - self._first, 1) / passed
            return passed >= self._seconds, step + max(1, round(left))

        due, self._next = trainer.world.root_only(estimate)
        return bool(due)
