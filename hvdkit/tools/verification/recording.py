"""What watches the ranks of the run that is verified."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hvdkit.tools.verification.framework_view import View
from hvdkit.tools.verification.storage import Log, digests, sample_digests
from hvdkit.training.observers import Observer, Record

if TYPE_CHECKING:
    from hvdkit.training.batches import Batch
    from hvdkit.training.trainer import Trainer


class Recorder(Observer):
    """Notes a rank's state after every update, its batches, and the averaged metrics of every epoch."""

    def __init__(self, view: View, folder: str) -> None:
        self._view = view
        self.log = Log(folder)
        self.sees_batches = True
        self.epochs: list[dict[str, float]] = []

    def on_fit_begin(self, trainer: Trainer) -> None:
        """Note the state that the first update starts from."""
        self._note(trainer)

    def on_batch(self, trainer: Trainer, batch: Batch) -> None:
        """Note a batch, which says itself where it belongs: ``fit`` may take some ahead."""
        if self.sees_batches:
            update = batch.epoch * trainer.steps_per_epoch + batch.number // trainer.accumulate + 1
            x, y = (np.asarray(part) for part in batch)
            self.note_batch(x, y, self._view.random_now(), batch.count, batch.weight, update, batch.epoch)

    def on_step_end(self, trainer: Trainer) -> None:
        """Note the state after an update."""
        self._note(trainer)

    def on_epoch_end(self, trainer: Trainer, record: Record) -> None:
        """Keep the averaged metrics."""
        left_out = ("epoch", "seconds", "samples_per_second", "learning_rate")
        self.epochs.append({name: float(value) for name, value in record.items() if name not in left_out})

    def note_batch(self, x: Any, y: Any, extra: Any, count: int, weight: float | None, update: int, epoch: int) -> None:
        """Note a micro-batch of an update (from 1) and an epoch (from 0)."""
        self.log.add_micro(
            x,
            y,
            extra,
            update=update,
            epoch=epoch,
            count=count,
            weight=weight,
            samples=sample_digests(self._view.neutral(x), y) if count else [],
        )

    def finish(self, trainer: Trainer) -> None:
        """Note what is known at the end, and write the log."""
        world = trainer.world
        self.log.facts |= {
            "rank": world.rank,
            "size": world.size,
            "local_rank": world.local_rank,
            "local_size": world.local_size,
            "node": world.node,
            "device": self._view.device(trainer.model),
            "engine": world.engine.name,
            "threads": self._view.threads(),
            "updates": trainer.global_step,
            "epochs": self.epochs,
            "statistics": digests({"statistics": self._view.statistics(trainer.model)}),
        }
        self.log.save()

    def _note(self, trainer: Trainer) -> None:
        state = self._view.state(trainer.model, trainer.optimizer)
        self.log.add_snapshot(trainer.global_step, self._view.rate(trainer.optimizer), state)
