"""Faults of what goes on from a checkpoint."""

from __future__ import annotations

import importlib
import importlib.metadata
from pathlib import Path
from typing import Any

from mutant_recipes import backends, mutant, nets

from hvdkit.job import world
from hvdkit.training import loop_trainer
from hvdkit.training import trainer as training


@mutant("checkpoint", model=nets(True))
def statistics_not_restored() -> None:
    """A resumed run starts with BatchNorm's statistics as they are before training."""
    _restore_without_statistics(lambda: True)


@mutant("checkpoint", model=nets(True))
def statistics_not_restored_on_rank_1() -> None:
    """Rank 0 has read the statistics and the others have not got them."""
    _restore_without_statistics(lambda: world.current().rank == 1)


def _restore_without_statistics(here: Any) -> None:
    continue_ = training.Trainer._continue

    def changed(self: Any, read: Any) -> None:
        if self.framework == "torch":
            kept = {name: value.clone() for name, value in self.model.named_buffers()}
        else:
            kept = [(variable, variable.numpy()) for variable in self.model.non_trainable_variables]
        continue_(self, read)
        if not here():
            return
        if self.framework == "torch":
            for name, value in self.model.named_buffers():
                value.copy_(kept[name])
        else:
            for variable, value in kept:
                variable.assign(value)

    training.Trainer._continue = changed  # type: ignore[method-assign]


# Keras 2 hides where its generators stand
KERAS = next((found.version for found in importlib.metadata.distributions(name="keras")), "")
SHOWN = ("torch",) if KERAS.startswith("2.") else ("torch", "tf", "keras")


@mutant("checkpoint", SHOWN, model=nets(False, dropout=True))
def random_state_not_restored() -> None:
    """A resumed run draws its dropout masks from the start of the stream again, on the last rank."""
    take = training.Trainer._take_random_state

    def changed(self: Any, state: dict[str, Any], name: str) -> None:
        if self.world.rank < self.world.size - 1:
            take(self, state, name)

    training.Trainer._take_random_state = changed  # type: ignore[method-assign]


@mutant("checkpoint")
def history_not_restored() -> None:
    """A resumed run forgets the epochs before it."""
    take = training.Trainer._take_position

    def changed(self: Any, state: dict[str, Any]) -> None:
        take(self, {**state, "history": []})

    training.Trainer._take_position = changed  # type: ignore[method-assign]


@mutant("checkpoint")
def oldest_file_chosen() -> None:
    """Of several files the first is taken."""
    assemble = importlib.import_module("hvdkit.training.assemble")
    files = assemble.epoch_files

    def oldest(directory: str, suffix: str) -> list[Path]:
        return list(reversed(files(directory, suffix)))

    assemble.epoch_files = oldest


@mutant("checkpoint", ("torch", "tf"))
def epoch_begun_anew() -> None:
    """A run that goes on inside an epoch takes its samples from the first on."""
    backends()
    loop_trainer.LoopTrainer._due = lambda self: iter(loop_trainer.pairs(self.batches))  # type: ignore


@mutant("checkpoint", ("torch", "tf"))
def sums_of_the_epoch_lost() -> None:
    """A run that goes on inside an epoch measures only the rest of it."""
    take = loop_trainer.LoopTrainer._take_position

    def changed(self: Any, state: dict[str, Any]) -> None:
        take(self, state)
        self._earlier = loop_trainer.Sums()

    loop_trainer.LoopTrainer._take_position = changed  # type: ignore[method-assign]


@mutant("checkpoint")
def later_files_lose_the_optimizer() -> None:
    """A run from the first file is right, and one from a later is not."""
    continue_ = training.Trainer._continue

    def changed(self: Any, read: Any) -> None:
        continue_(self, read)
        if self.epoch < 2:
            return
        if self.framework == "torch":
            for state in self.optimizer.state.values():
                for value in state.values():
                    if hasattr(value, "zero_"):
                        value.zero_()
        else:
            for variable in self.optimizer.variables:
                if "momentum" in getattr(variable, "path", variable.name):
                    variable.assign(variable * 0)

    training.Trainer._continue = changed  # type: ignore[method-assign]


@mutant("checkpoint")
def newest_files_deleted() -> None:
    """Of the files that are too many the newest go."""
    writer = importlib.import_module("hvdkit.training.checkpoint_writer")
    files = writer.epoch_files

    def newest_first(self: Any, path: Path) -> None:
        for extra in files(self._settings.directory, path.suffix[1:])[self._settings.keep :]:
            extra.unlink(missing_ok=True)

    writer.CheckpointWriter._tidy = newest_first
