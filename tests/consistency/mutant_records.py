"""More faults of steps 7 and 8: metrics, and what is saved and read."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from mutant_recipes import backends, mutant
from mutant_tools import everywhere, multiply, rank, velocities, weights

from hvdkit.job import metrics
from hvdkit.recipe.evaluation import EvaluationPlan
from hvdkit.training import trainer as training


def _validation(change: Callable[[Any, Any, int], Any]) -> None:
    """Change the batches of validation samples of a rank."""
    micro_batches = EvaluationPlan.micro_batches
    EvaluationPlan.micro_batches = lambda self, rank: change(  # type: ignore[method-assign]
        self, list(micro_batches(self, rank)), rank
    )


@mutant("shard")
def validated_on_the_first_part_by_all() -> None:
    """All ranks evaluate rank 0's samples."""
    micro_batches = EvaluationPlan.micro_batches
    count = EvaluationPlan.count
    EvaluationPlan.count = lambda self, rank: count(self, 0)  # type: ignore[method-assign]
    EvaluationPlan.micro_batches = lambda self, rank: micro_batches(self, 0)  # type: ignore[method-assign]


@mutant("shard", ("torch", "tf"))
def last_validation_batch_dropped() -> None:
    """The short batch at the end is not evaluated."""
    _validation(lambda self, parts, rank: parts[:-1])


def _records(change: Callable[[dict[str, float], Any], dict[str, float]]) -> None:
    """Change the metrics of an epoch before anyone is told."""
    end_epoch = training.Trainer._end_epoch

    def changed(self: Any, metrics: Any, validation: Any, samples: float, spent: float) -> None:
        end_epoch(self, change(dict(metrics), self), validation, samples, spent)

    training.Trainer._end_epoch = changed  # type: ignore[method-assign]


@mutant("average")
def loss_one_percent_off() -> None:
    """The training loss is a hundredth too large."""
    _records(lambda found, trainer: {**found, "loss": found["loss"] * 1.01})


@mutant("average")
def loss_a_last_place_off_on_one_rank() -> None:
    """One rank reports a loss of its own, though it hardly differs."""
    _records(lambda found, trainer: {**found, "loss": found["loss"] * (1 + 1e-9 * rank())})


@mutant("average")
def metrics_of_the_epoch_before() -> None:
    """From the second epoch on, the first one's metrics are told again."""
    held: dict[str, float] = {}

    def change(found: dict[str, float], trainer: Any) -> dict[str, float]:
        held.update({} if held else found)
        return dict(held)

    _records(change)


@mutant("average")
def accuracy_of_ninety_percent() -> None:
    """Accuracy is a tenth too small."""
    _records(lambda found, trainer: {**found, "accuracy": found["accuracy"] * 0.9})


@mutant("average", ("torch", "tf"))
def largest_of_all_ranks() -> None:
    """The largest sum of all ranks stands for the sum over them."""

    def over_ranks(self: Any, world: Any) -> Any:
        joined = metrics.Sums()
        gathered = [dict(totals) for totals in world.engine.allgather_object(self._totals)]
        for name in gathered[0]:
            joined.add(name, *max((entry[name] for entry in gathered), key=lambda entry: entry[0] / max(entry[1], 1)))
        return joined

    metrics.Sums.over_ranks = over_ranks  # type: ignore[method-assign]


@mutant("average", ("torch", "tf"))
def counts_not_joined() -> None:
    """Sums are added over ranks and divided by one rank's samples."""

    def over_ranks(self: Any, world: Any) -> Any:
        joined = metrics.Sums()
        for place, totals in enumerate(world.engine.allgather_object(self._totals)):
            for name, (total, count) in totals.items():
                joined.add(name, total, count if place == 0 else 0)
        return joined

    metrics.Sums.over_ranks = over_ranks  # type: ignore[method-assign]


@mutant("shard", ("torch", "tf"), batch_size=2)
def repeated_samples_measured() -> None:
    """A rank that repeats a sample, since it has none left, counts it."""
    from hvdkit.recipe.plan import MicroBatch

    MicroBatch.count = property(lambda self: len(self.indices))  # type: ignore[assignment, method-assign]


# step 7


def _restored(change: Callable[[Any], None]) -> None:
    """Do something to a trainer that has taken a checkpoint."""
    take = training.Trainer._continue

    def changed(self: Any, read: Any) -> None:
        take(self, read)
        change(self)

    training.Trainer._continue = changed  # type: ignore[method-assign]


@mutant("checkpoint")
def momentum_zero_after_reading() -> None:
    """Slots are read and forgotten."""
    _restored(lambda trainer: [multiply(velocity, 0.0) for velocity in velocities(trainer)] and None)


@mutant("checkpoint")
def one_rank_reads_other_weights() -> None:
    """After a file was read, one rank's first weight is a ten-thousandth off."""
    _restored(lambda trainer: multiply(weights(trainer)[0], 1 + 1e-4 * rank()))


@mutant("checkpoint")
def weights_rounded_in_the_file() -> None:
    """What is read has lost digits."""

    def change(trainer: Any) -> None:
        for variable in weights(trainer):
            multiply(variable, 1 + 2.0**-20)

    _restored(change)


def _positions(change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    take = training.Trainer._take_position
    training.Trainer._take_position = lambda self, state: take(self, change(state))  # type: ignore[method-assign]


@mutant("checkpoint")
def epoch_not_restored() -> None:
    """A resumed run does its epochs again."""
    _positions(lambda state: {**state, "epoch": 0})


@mutant("checkpoint")
def updates_not_restored() -> None:
    """A resumed run counts its updates from 0: the learning rate is that of the start."""
    _positions(lambda state: {**state, "step": 0})


@mutant("checkpoint")
def one_epoch_too_far() -> None:
    """A resumed run leaves out an epoch."""
    _positions(lambda state: {**state, "epoch": state["epoch"] + 1})


@mutant("checkpoint")
def history_not_restored() -> None:
    """The epochs before the file are not in the history."""
    _positions(lambda state: {**state, "history": []})


@mutant("checkpoint")
def oldest_file_taken() -> None:
    """Of several files the first is taken."""
    from hvdkit.job import files

    epoch_files = files.epoch_files
    everywhere(files, "epoch_files", lambda directory, suffix: epoch_files(directory, suffix)[:1])


@mutant("checkpoint")
def saved_an_epoch_late() -> None:
    """Each file holds the weights of the epoch before."""
    for backend in backends():
        backend.save = _late(backend.save)


def _late(save: Any) -> Any:
    from pathlib import Path

    def late(path: str, model: Any, optimizer: Any = None, **state: Any) -> None:
        save(path, model, optimizer, **state)
        # the newest file takes the content of the one before it
        older = sorted(file for file in Path(path).parent.glob("epoch-*") if str(file) < path)
        if rank() == 0 and older:
            Path(path).write_bytes(older[-1].read_bytes())

    return late


@mutant("checkpoint", ("torch",))
def generators_reseeded_by_reading() -> None:
    """A resumed run shuffles as if it began with epoch 0."""
    batches = importlib.import_module("hvdkit.training.batches").Planned
    set_epoch = batches.set_epoch
    state: dict[str, bool] = {}
    _restored(lambda trainer: state.update(resumed=True))
    batches.set_epoch = lambda self, epoch: set_epoch(self, 0 if state.get("resumed") else epoch)
