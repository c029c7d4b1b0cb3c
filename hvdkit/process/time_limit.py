"""SIGUSR1 from a scheduler, or from ``hvdkit run --signal-before``: the time is nearly up."""

from __future__ import annotations

import signal
import threading
from types import FrameType


class _Told:
    """Whether the signal has come; a lock would not do, since a handler may interrupt another."""

    yes = False


def take_signal() -> None:
    """Note the signal from now on, unless the script handles it; without this it would end the process."""
    in_main = threading.current_thread() is threading.main_thread()
    if in_main and signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL:
        signal.signal(signal.SIGUSR1, _note)


def is_nearly_up() -> bool:
    """Say whether the signal has come."""
    return _Told.yes


def _note(_signum: int, _frame: FrameType | None) -> None:
    _Told.yes = True
