"""Whether an update is being recorded, and what it did that a replay has to be counted for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Run:
    """One run of a step that may be recorded.

    Attributes:
        recording: Whether nothing of it happens on the device yet.
        updated: The optimizers that have stepped in it, once for each step.
    """

    def __init__(self, recording: bool) -> None:
        self.recording = recording
        self.updated: list[torch.optim.Optimizer] = []


# not in a context variable: torch runs backward passes on GPUs in threads of its own
_runs: list[Run] = []


@contextmanager
def running(*, recording: bool) -> Iterator[Run]:
    """Run a step inside."""
    run = Run(recording)
    _runs.append(run)
    try:
        yield run
    finally:
        _runs.remove(run)


def current_run() -> Run | None:
    """Return the run that is under way."""
    return _runs[-1] if _runs else None


def is_recording() -> bool:
    """Say whether what the device is given is only recorded."""
    return bool(_runs) and _runs[-1].recording
