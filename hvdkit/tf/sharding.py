"""Step 3: this rank's batches for a custom loop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from hvdkit.job import world as worlds
from hvdkit.keras_common.compat import is_keras3
from hvdkit.keras_common.data.tf_datasets import (
    Sharded,
    check_pair,
    refuse_loader_options,
    shard_arrays,
    shard_dataset,
)
from hvdkit.recipe.plan import ShardPlan


class Batches:
    """This rank's batches of every epoch; re-iterable, with a length.

    Attributes:
        weight: What the mean loss of the current batch counts for: n_local * size * passes / n_global; 1.0 in a full
            one. A custom loop multiplies its loss by it.
        last: Whether an optimizer update follows the current batch.
        count: How many samples the current batch stands for; 0 for a repeated one.
    """

    def __init__(self, sharded: Sharded, accumulate: int) -> None:
        self._sharded, self._accumulate = sharded, accumulate
        self._endless: Iterator[Any] | None = None
        self.weight, self.last, self.count = 1.0, True, 0

    @property
    def labels(self) -> Any:
        """The labels of all ranks, or None where they are not known beforehand."""
        return self._sharded.labels

    @property
    def plan(self) -> ShardPlan | None:
        """How samples are laid out over ranks; None for an endless stream."""
        return self._sharded.plan

    @property
    def steps(self) -> int:
        """Optimizer updates per epoch."""
        return self._sharded.steps

    def set_epoch(self, epoch: int) -> None:
        """Take the order of this epoch, counted from 0; without it, each complete iteration is followed by the next."""
        self._sharded.epoch = epoch

    def __len__(self) -> int:
        return self._sharded.passes if self._sharded.plan is not None else self.steps * self._accumulate

    def __iter__(self) -> Iterator[Any]:
        if self._sharded.plan is None:
            yield from self._stream()
            return
        for part, batch in zip(list(self._sharded.parts()), self._sharded.dataset, strict=True):
            self.weight, self.last = part.weight, part.last
            self.count = len(part.indices) if part.weight else 0
            yield batch
        self._sharded.epoch += 1

    def _stream(self) -> Iterator[Any]:
        """Go on in an endless data set where the last epoch stopped."""
        if self._endless is None:
            self._endless = iter(self._sharded.dataset)
        for number in range(len(self)):
            batch = next(self._endless)
            self.last = (number + 1) % self._accumulate == 0
            self.count = int(tf.shape(batch[0])[0])
            yield batch


def shard(
    data: Any,
    batch_size: int,
    *,
    shuffle: bool = True,
    seed: int = 0,
    uneven: str = "exact",
    accumulate: int = 1,
    steps_per_epoch: int | None = None,
    workers: int = 0,
    prefetch: int = 2,
    pin_memory: bool | str = "auto",
) -> Batches:
    """Step 3: this rank's batches, disjoint and complete over ranks, the same number on each.

    Args:
        data: ``(x, y)`` arrays, or a ``tf.data.Dataset`` of single samples, which is sharded before anything else; its
            order then depends on the number of processes.
        batch_size: Samples per process and batch.
        shuffle: A new order every epoch.
        seed: The same on all ranks.
        uneven: ``exact`` (short batches are weighted), ``pad`` (samples repeat) or ``drop``.
        accumulate: Batches per optimizer update.
        steps_per_epoch: Updates per epoch and process; needed for endless data.
        workers: Not available here; ``tf.data`` has its own threads.
        prefetch: Batches prepared ahead.
        pin_memory: Not available here.

    Raises:
        DataError: The data are empty, or too few for ``drop``.
        RecipeError: The data cannot be sharded as they are, or an option is not available.
    """
    world = worlds.current()
    refuse_loader_options(workers, pin_memory)
    if isinstance(data, tf.data.Dataset):
        settings = {
            "batch_size": batch_size,
            "accumulate": accumulate,
            "uneven": uneven,
            "shuffle": shuffle,
            "seed": seed,
        }
        return Batches(shard_dataset(data, world, settings, steps_per_epoch, prefetch), accumulate)
    check_pair(data)
    plan = ShardPlan(
        len(data[0]),
        batch_size,
        world.size,
        accumulate,
        uneven,
        shuffle,
        seed,
        steps_per_epoch,
        whole=is_keras3() and accumulate > 1,
    )
    return Batches(shard_arrays(data, plan, world.rank, prefetch, weighted=False), accumulate)


def steps(batches: Batches) -> int:
    """Return the optimizer updates per epoch."""
    return batches.steps
