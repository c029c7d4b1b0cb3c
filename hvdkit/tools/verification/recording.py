"""What watches the ranks of the run that is verified."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvdkit.recipe.trees import map_tree
from hvdkit.tools.verification.framework_view import View
from hvdkit.tools.verification.storage import CHECKPOINTS, Draws, Log, Micro, Pass, epoch_files, places, sample_digests
from hvdkit.training.observers import Observer, Record

if TYPE_CHECKING:
    from hvdkit.recipe.plan import Indices
    from hvdkit.training.batches import Batch
    from hvdkit.training.trainer import Trainer


class Recorder(Observer):
    """Notes a rank's state after every update, its batches, and the averaged metrics of every epoch.

    Attributes:
        log: What it has noted.
        sees_batches: Whether the announced batches are what the model is given.
        epochs: The averaged metrics.
        save_at: The update behind which a file is saved in the log's folder, inside an epoch, which joins statistics.
        go_on: The pass before which random generators take the place that they had then, wherever they stand.
        earlier: The log of the run that has that pass.
    """

    def __init__(self, view: View, folder: str) -> None:
        self._view = view
        self.log = Log(folder)
        self.sees_batches = True
        self.epochs: list[dict[str, float]] = []
        self.save_at: int | None = None
        self.go_on: Micro | None = None
        self.earlier: Log | None = None
        self._saved: int | None = None

    def on_fit_begin(self, trainer: Trainer) -> None:
        """Note the state that the first update starts from."""
        self._note(trainer)
        if self.earlier is None and trainer.world.rank == 0:
            self.log.keep_start(self._view.state(trainer.model, trainer.optimizer))
        if self.earlier is not None:
            self.log.facts["saved_generators"] = self._view.saved_generators(trainer.model)
        self._take_draws(trainer)

    def on_epoch_begin(self, trainer: Trainer) -> None:
        """Note where the random generators stand, or set them for data that draw as they are loaded.

        Of the files behind epochs the first and the newest stay.
        """
        if self.earlier is None and trainer.world.rank == 0:
            for path in epoch_files(str(Path(self.log.folder).parent / CHECKPOINTS))[1:-1]:
                path.unlink()
        if self.earlier is not None:
            self._view.set_draws(trainer.model, self.earlier.draws_at(trainer.epoch))
        self.log.keep_draws(trainer.epoch, self._view.draws(trainer.model))

    def on_batch(self, trainer: Trainer, batch: Batch) -> None:
        """Note a batch, which says itself where it belongs: ``fit`` may take some ahead."""
        if self.sees_batches:
            if self.go_on is not None:
                now, then = (places(draws) for draws in (self._view.draws(trainer.model), self.go_on.load().draws))
                self.log.facts["moved_generators"] = [name for name in then if now.get(name) != then[name]]
            self._take_draws(trainer)
            self.go_on = None
            update = batch.epoch * trainer.steps_per_epoch + batch.number // trainer.accumulate + 1
            counted = batch.count, batch.weight, update, batch.epoch
            self.note_batch(batch.inputs, batch.targets, *counted, trainer.model, batch.indices)

    def on_evaluation_batch(self, trainer: Trainer, batch: Batch) -> None:
        """Note a batch that is evaluated at the end of an epoch."""
        self.note_evaluated(batch.inputs, batch.targets, batch.count, trainer, indices=batch.indices)

    def on_step_end(self, trainer: Trainer) -> None:
        """Note the state after an update."""
        self._note(trainer)
        if trainer.global_step == self.save_at and trainer.resumes_inside_epochs:
            file = Path(self.log.folder, f"inside.{trainer.suffix}")
            trainer.save(str(file))
            if self.earlier is not None:
                # saved since that joins statistics
                file.unlink(missing_ok=True)
            self._saved = trainer.global_step
            self._note_end(trainer)

    def on_epoch_end(self, trainer: Trainer, record: Record) -> None:
        """Keep the averaged metrics and the joined statistics."""
        left_out = ("epoch", "seconds", "samples_per_second", "learning_rate")
        self.epochs.append({name: float(value) for name, value in record.items() if name not in left_out})
        self._note_end(trainer)

    def note_batch(
        self,
        inputs: Any,
        targets: Any,
        count: int,
        weight: float | None,
        update: int,
        epoch: int,
        model: Any,
        indices: Indices | None = None,
        draws: Draws | None = None,
    ) -> None:
        """Note a micro-batch of an update (from 1) and an epoch (from 0), before its pass.

        A pass that is under way says itself where the random generators stood.
        """
        passed = self._pass(inputs, targets, model, draws)
        notes = {"update": update, "epoch": epoch, "count": count, "weight": weight}
        self.log.add_micro(self._to_replay(passed), **notes, **self._samples(passed, count, indices))

    def note_evaluated(
        self,
        inputs: Any,
        targets: Any,
        count: int,
        trainer: Trainer,
        draws: Draws | None = None,
        indices: Indices | None = None,
    ) -> None:
        """Note a batch that is evaluated; one that is under way says itself where the random generators stood."""
        passed = self._pass(inputs, targets, trainer.model, draws)
        notes = {"update": trainer.global_step, "epoch": trainer.epoch, "count": count, "weight": None}
        self.log.add_evaluated(self._to_replay(passed), **notes, **self._samples(passed, count, indices))

    def _pass(self, inputs: Any, targets: Any, model: Any, draws: Draws | None = None) -> Pass:
        draws = self._view.draws(model) if draws is None else draws
        return Pass(map_tree(self._view.array, inputs), map_tree(self._view.array, targets), draws)

    def _to_replay(self, passed: Pass) -> Pass | None:
        return passed if self.earlier is None else None

    def _samples(self, passed: Pass, count: int, indices: Indices | None) -> dict[str, Any]:
        """Return what tells the samples of a batch apart; nothing where it stands for none."""
        return {
            "samples": sample_digests(map_tree(self._view.neutral, passed.inputs), passed.targets) if count else [],
            "indices": None if indices is None else [int(index) for index in indices[:count]],
        }

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
            "history": [_without_times(record) for record in trainer.history.epochs],
            "stopped": trainer.epoch,
            "saved_inside": self._saved,
        }
        self.log.save()

    def _note(self, trainer: Trainer) -> None:
        model, optimizer = trainer.model, trainer.optimizer
        # first, since it brings the values of variables up to date
        state = self._view.state(model, optimizer)
        self.log.add_snapshot(trainer.global_step, self._view.rates(optimizer), self._view.draws(model), state)

    def _note_end(self, trainer: Trainer) -> None:
        state = self._view.state(trainer.model, trainer.optimizer)
        self.log.add_end(trainer.global_step, state["statistics"])

    def _take_draws(self, trainer: Trainer) -> None:
        if self.go_on is not None:
            self._view.set_draws(trainer.model, self.go_on.load().draws)


def _without_times(record: Record) -> Record:
    return {name: value for name, value in record.items() if name not in ("seconds", "samples_per_second")}
