"""Step 7 of a recipe: when a run is saved, which files stay, and which of them is the best."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from hvdkit.errors import RecipeError
from hvdkit.job import manifest
from hvdkit.job.background import Background
from hvdkit.job.checkpoint_folder import claim, release
from hvdkit.job.files import epoch_files, epoch_path, write_atomically
from hvdkit.recipe.steps import Checkpoint
from hvdkit.recipe.stopping import FALLING, direction_of
from hvdkit.training.observers import Observer, Record, say
from hvdkit.training.pace import Pace

if TYPE_CHECKING:
    from hvdkit.training.trainer import Trainer


class CheckpointWriter(Observer):
    """Writes a file after each epoch, and inside epochs if it is to; keeps the newest and the best."""

    def __init__(self, settings: Checkpoint) -> None:
        self._settings = settings
        self._background = Background()
        minutes = settings.every_minutes
        self._pace = None if minutes is None else Pace(60.0 * minutes)

    def on_fit_begin(self, trainer: Trainer) -> None:
        """Make the folder this job's own, before anything is trained.

        Raises:
            CheckpointError: It cannot be written, or another job writes there; on all ranks.
            RecipeError: Files are due inside epochs, where this run cannot begin.
        """
        for name in ("every_steps", "every_minutes"):
            if getattr(self._settings, name) is not None and trainer.only_whole_epochs:
                raise RecipeError(f"Checkpoint.{name} must be None: {trainer.only_whole_epochs}")
        trainer.world.root_only(self._claim)

    def on_step_end(self, trainer: Trainer) -> None:
        """Save inside an epoch where that is due; all ranks take part."""
        every = self._settings.every_steps
        due = every is not None and trainer.global_step % every == 0
        if self._pace is not None:
            due = self._pace.is_due(trainer) or due
        if due and 0 < trainer.steps_into_epoch < trainer.steps_per_epoch:
            self._write(trainer, trainer.global_step)

    def on_epoch_end(self, trainer: Trainer, record: Record) -> None:
        """Save on rank 0; all ranks take part."""
        self._write(trainer, best=self._is_best(trainer))

    def on_fit_end(self, trainer: Trainer) -> None:
        """Wait for the last file, and give the folder up."""
        trainer.world.root_only(self._background.finish)
        if trainer.world.is_root:
            release(self._settings.directory)

    def save_now(self, trainer: Trainer) -> str:
        """Save what can be gone on from, at once; return from where that is. Called by all ranks."""
        if trainer.steps_into_epoch and not trainer.only_whole_epochs:
            self._write(trainer, trainer.global_step)
        trainer.world.root_only(self._background.finish)
        files = epoch_files(self._settings.directory, trainer.suffix)
        return f"the job can go on from {files[-1]}" if files else "there is no file yet to go on from"

    def _claim(self) -> None:
        directory = self._settings.directory
        strays = claim(directory)
        if strays:
            say(f"hvdkit: removed {strays} half-written file(s) of a killed job in {directory}")

    def _write(self, trainer: Trainer, step: int | None = None, best: bool = False) -> None:
        """Write while training goes on, from a copy; an error is raised on all ranks where the next file is due."""
        trainer.world.root_only(self._background.finish)
        path = epoch_path(self._settings.directory, trainer.epoch, trainer.suffix, step)
        write = trainer.snapshot(str(path))

        def write_and_tidy() -> None:
            write()
            self._tidy(path)
            if best:
                self._keep_as_best(path)

        if trainer.world.is_root:
            self._background.start(write_and_tidy)
        if self._pace is not None:
            self._pace.begin(trainer)

    def _tidy(self, path: Path) -> None:
        for old in epoch_files(self._settings.directory, path.suffix[1:])[: -self._settings.keep]:
            old.unlink()
        manifest.note(path)

    def _is_best(self, trainer: Trainer) -> bool:
        if self._settings.best is None:
            return False
        found = direction_of(self._settings.best)
        assert found is not None  # checked when it was set
        direction, metric = found
        *earlier, last = trainer.history.values(metric)
        return all(last < value if direction == FALLING else last > value for value in earlier)

    def _keep_as_best(self, path: Path) -> None:
        best = path.with_name(f"best{path.suffix}")
        write_atomically(best, lambda file: shutil.copyfile(path, file))
        manifest.note(best)
