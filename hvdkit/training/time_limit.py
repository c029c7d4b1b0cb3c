"""Saves a run and ends it where its scheduler says that the time is nearly up."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from hvdkit.process import time_limit
from hvdkit.process.failures import AGAIN
from hvdkit.training.observers import Observer, say
from hvdkit.training.pace import Pace

if TYPE_CHECKING:
    from hvdkit.training.checkpoint_writer import CheckpointWriter
    from hvdkit.training.trainer import Trainer

LOOK_SECONDS = 2.0


class TimeLimit(Observer):
    """Looks every two seconds, at updates on which all ranks agree, whether rank 0 has got the signal.

    Args:
        writer: Saves the run.
    """

    def __init__(self, writer: CheckpointWriter) -> None:
        self._writer = writer
        self._pace = Pace(LOOK_SECONDS)

    def on_fit_begin(self, trainer: Trainer) -> None:
        """Take the signal, unless the script does."""
        time_limit.take_signal()
        self._pace.begin(trainer)

    def on_step_end(self, trainer: Trainer) -> None:
        """Save and end where the time is up; all ranks take part."""
        if not self._pace.is_due(trainer):
            return
        self._pace.begin(trainer)
        if trainer.world.root_only(time_limit.is_nearly_up):
            saved = self._writer.save_now(trainer)
            if trainer.world.is_root:
                say(f"hvdkit: the time is nearly up; {saved}")
            trainer.shutdown()
            sys.exit(AGAIN)
