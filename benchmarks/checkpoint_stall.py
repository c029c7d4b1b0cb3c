"""How much longer an epoch of 100 steps of ResNet34 takes because a checkpoint is written beside it.

    hvdkit run -np 1 -m benchmarks.checkpoint_stall

Every other epoch begins with a file. An epoch's time includes the copy that is made before it goes on, and what the
writing beside it takes from it.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from typing import Any

import click

import hvdkit
from hvdkit.recipe.steps import Checkpoint
from hvdkit.training.checkpoint_writer import CheckpointWriter
from hvdkit.training.observers import Observer, Record

STEPS = 100


class EveryOther(Observer):
    """Writes a file after every other epoch, and notes how long the epoch behind it takes."""

    def __init__(self, folder: str) -> None:
        self._writer = CheckpointWriter(Checkpoint(folder))
        self._began: float | None = None
        self._writes = False
        self.copies: list[float] = []
        self.epochs: dict[bool, list[float]] = {False: [], True: []}

    def on_fit_begin(self, trainer: Any) -> None:
        """Make the folder this job's own."""
        self._writer.on_fit_begin(trainer)

    def on_epoch_end(self, trainer: Any, record: Record) -> None:
        """Note the epoch's time; write if it is due."""
        now = time.perf_counter()
        if self._began is not None:
            self.epochs[self._writes].append(now - self._began)
        self._began, self._writes = now, not self._writes
        if self._writes:
            self._writer.on_epoch_end(trainer, record)
            self.copies.append(time.perf_counter() - now)

    def on_fit_end(self, trainer: Any) -> None:
        """Wait for the last file."""
        self._writer.on_fit_end(trainer)


@click.command()
@click.option("--batch", default=8, show_default=True, help="Images of a step on each process.")
@click.option("--rounds", default=5, show_default=True, help="Pairs of epochs.")
def main(batch: int, rounds: int) -> None:
    """Show the times of epochs with a file and without."""
    with tempfile.TemporaryDirectory() as folder:
        observer = EveryOther(folder)
        recipe = hvdkit.Recipe(
            model="resnet34",
            data=hvdkit.datasets.synthetic(STEPS * batch, (32, 32, 3), 10),
            loss="sparse_categorical_crossentropy",
            optimizer=hvdkit.SGD(lr=1e-3, momentum=0.9),
            batch_size=batch,
            steps_per_epoch=STEPS,
            epochs=2 * rounds + 1,
            observers=(observer,),
        )
        trainer = hvdkit.apply(recipe, framework="torch")
        trainer.fit()
    world = trainer.world
    if world.is_root:
        copy, (without, with_file) = (
            statistics.median(observer.copies),
            map(statistics.median, observer.epochs.values()),
        )
        click.echo(f"resnet34, batch {batch}, {STEPS} steps, {world.size} process(es)")
        click.echo(f"epoch without a file {without:.2f} s, with one {with_file:.2f} s: {with_file / without - 1:+.2%}")
        click.echo(f"training waits for the copy {copy:.3f} s, {copy / without:.2%} of an epoch")


if __name__ == "__main__":
    main()
