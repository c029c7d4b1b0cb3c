"""Step 3: this rank's batches for a custom loop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from hvdkit.job import world as worlds
from hvdkit.job.collective import on_all_ranks
from hvdkit.keras_common.compat import counts_passes
from hvdkit.keras_common.data.tf_datasets import (
    OwnSamples,
    array_batches,
    own_samples,
    refuse_loader_options,
)
from hvdkit.recipe.plan import MicroBatch
from hvdkit.recipe.trees import samples_of
from hvdkit.training.batches import LoopBatches, PlannedBatches, Sharding, StreamBatches
from hvdkit.training.same_data import check_same_arrays


class ArraySource:
    """Neutral arrays ``(x, y)``.

    Attributes:
        targets: All labels.
    """

    drawn = True

    def __init__(self, data: Any, prefetch: int) -> None:
        self._data, self._prefetch = data, prefetch
        self.targets = data[1]

    def load(self, parts: list[MicroBatch]) -> Iterator[tuple[Any, Any]]:
        """Yield inputs and targets of each micro-batch of an epoch, as tensors."""
        yield from array_batches(self._data, lambda: parts).prefetch(self._prefetch)


class DatasetSource:
    """The user's data set of single samples, this rank's part of it."""

    drawn = False
    targets: Any = None

    def __init__(self, own: OwnSamples, prefetch: int) -> None:
        self._own, self._prefetch = own, prefetch

    def load(self, parts: list[MicroBatch]) -> Iterator[tuple[Any, Any]]:
        """Yield inputs and targets of batches in the lengths of the plan."""
        yield from self._own.in_parts(parts).prefetch(self._prefetch)


@on_all_ranks
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
) -> LoopBatches:
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
        DataError: The data are empty, too few for ``drop``, or, arrays, not the same on all ranks.
        RecipeError: The data cannot be sharded as they are, or an option is not available.
    """
    asked = Sharding(batch_size, shuffle, seed, uneven, accumulate, steps_per_epoch, workers, prefetch, pin_memory)
    refuse_loader_options(asked)
    if not isinstance(data, tf.data.Dataset):
        samples, world = samples_of(data, " or a tf.data.Dataset"), worlds.current()
        check_same_arrays(world, data)
        plan = asked.plan(samples, world, whole=counts_passes() and accumulate > 1)
        return PlannedBatches(ArraySource(data, prefetch), plan, world.rank)
    own = own_samples(data, asked)
    if own.plan is not None:
        return PlannedBatches(DatasetSource(own, prefetch), own.plan, own.rank)
    assert steps_per_epoch is not None  # own_samples refuses a stream without
    return StreamBatches(own.endless(batch_size).prefetch(prefetch), steps_per_epoch, accumulate, batch_size)
