"""What watches a run without taking part in it: history, progress and checkpoints are all observers."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hvdkit.training.batches import Batch
    from hvdkit.training.trainer import Trainer

Record = dict[str, Any]


class Observer:
    """Base of all observers; every rank calls every method, so a method may use collectives.

    But for :meth:`on_evaluation_batch`: ranks may evaluate different numbers of batches.
    """

    def on_fit_begin(self, trainer: Trainer) -> None:
        """Called once, before the first epoch."""

    def on_epoch_begin(self, trainer: Trainer) -> None:
        """Called before each epoch; ``trainer.epoch`` counts the finished ones."""

    def on_batch(self, trainer: Trainer, batch: Batch) -> None:
        """Called for each batch that this rank takes, before its pass; Keras's ``fit`` may take some ahead."""

    def on_step_end(self, trainer: Trainer) -> None:
        """Called after each optimizer update; ``trainer.global_step`` counts them."""

    def on_evaluation_batch(self, trainer: Trainer, batch: Batch) -> None:
        """Called for each batch of this rank that is evaluated (torch and tf)."""

    def on_epoch_end(self, trainer: Trainer, record: Record) -> None:
        """Called after each epoch and its validation, with the averaged metrics."""

    def on_fit_end(self, trainer: Trainer) -> None:
        """Called once, after the last epoch."""


class History(Observer):
    """Averaged metrics of every epoch, the same on all ranks.

    Attributes:
        epochs: One record per epoch: epoch (from 1), loss, metrics, val_loss, seconds (the slowest rank's),
            samples_per_second (all ranks), learning_rate; in fp16 skipped_steps, with compression the elements of
            clipped_gradients and lost_gradients (rounded to 0) over all ranks.
        seconds_to_first_step: From ``apply`` to the end of the first update, None before it.
    """

    def __init__(self) -> None:
        self.epochs: list[Record] = []
        self.seconds_to_first_step: float | None = None

    def on_step_end(self, trainer: Trainer) -> None:
        """Note when the first step was done."""
        if self.seconds_to_first_step is None:
            self.seconds_to_first_step = trainer.seconds()

    def on_epoch_end(self, trainer: Trainer, record: Record) -> None:
        """Keep the record."""
        self.epochs.append(record)

    def values(self, name: str) -> list[float]:
        """Return one metric over the epochs."""
        return [record[name] for record in self.epochs]


class Progress(Observer):
    """A start-up summary, a progress bar on a terminal, and one line per epoch; on rank 0 alone."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._task: Any = None

    def on_fit_begin(self, trainer: Trainer) -> None:
        """Show what is about to run."""
        if trainer.world.is_root:
            say(trainer.summary())

    def on_epoch_begin(self, trainer: Trainer) -> None:
        """Start the bar of this epoch."""
        if not (trainer.world.is_root and sys.stderr.isatty()):
            return
        from rich.console import Console
        from rich.progress import Progress as Bar

        self._bar = Bar(console=Console(stderr=True), transient=True)
        self._bar.start()
        self._task = self._bar.add_task(f"epoch {trainer.epoch + 1}", total=trainer.steps_per_epoch)

    def on_step_end(self, trainer: Trainer) -> None:
        """Move the bar."""
        if self._bar is not None:
            self._bar.advance(self._task)

    def on_epoch_end(self, trainer: Trainer, record: Record) -> None:
        """Show one line of averaged metrics."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        if trainer.world.is_root:
            say(_line(record))


def say(text: str) -> None:
    """Write a line where progress is shown."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _line(record: Record) -> str:
    shown = [
        f"{name} {value}" if isinstance(value, int) else f"{name} {value:.4f}"
        for name, value in record.items()
        if name not in _APART
    ]
    return (
        f"epoch {record['epoch']}: {', '.join(shown)}, "
        f"{record['seconds']:.2f} s, {record['samples_per_second']:.0f} samples/s"
    )


_APART = ("epoch", "seconds", "samples_per_second", "learning_rate")
