"""Step 3: this rank's batches for a custom loop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from hvdkit.job import world as worlds
from hvdkit.job.collective import on_all_ranks
from hvdkit.keras_common.compat import counts_passes
from hvdkit.keras_common.data.evaluation import samples_in
from hvdkit.keras_common.data.tf_datasets import (
    OwnSamples,
    array_batches,
    in_blocks,
    is_stream,
    own_samples,
    refuse_loader_options,
    take_evaluation,
)
from hvdkit.recipe.evaluation import EvaluationPlan, check_evaluation
from hvdkit.recipe.plan import MicroBatch, ShardPlan
from hvdkit.recipe.trees import samples_of
from hvdkit.training.batches import (
    LoopBatches,
    PlannedBatches,
    Sharding,
    StreamBatches,
    given_batch_size,
    refuse_sharded,
)
from hvdkit.training.evaluation_batches import EvaluationBatches, EvaluationStream
from hvdkit.training.same_data import SAMPLES, check_same_arrays
from hvdkit.training.same_stream import evidence_of
from hvdkit.training.streams import Block, ShardedStream, block_parts


class ArraySource:
    """Neutral arrays: a tree of them.

    Attributes:
        targets: All labels of ``(x, y)``; else None.
    """

    drawn = True

    def __init__(self, data: Any, prefetch: int) -> None:
        self._data, self._prefetch = data, prefetch
        self.targets = data[1] if isinstance(data, tuple) and len(data) == 2 else None

    def load(self, parts: list[MicroBatch]) -> Iterator[Any]:
        """Yield the samples of each micro-batch of an epoch, as tensors."""
        yield from array_batches(self._data, lambda: parts).prefetch(self._prefetch)


class DatasetSource:
    """The user's data set of single samples, this rank's part of it."""

    drawn = False
    targets: Any = None

    def __init__(self, own: OwnSamples, prefetch: int) -> None:
        self._own, self._prefetch = own, prefetch

    def load(self, parts: list[MicroBatch]) -> Iterator[Any]:
        """Yield batches in the lengths of the plan."""
        yield from self._own.in_parts(parts).prefetch(self._prefetch)


class BlockSource:
    """The user's data set of unknown length, in global batches."""

    def __init__(self, blocks: Any, plan: ShardPlan, rank: int) -> None:
        self._blocks, self._plan, self._rank = blocks, plan, rank

    def read(self, epoch: int, looking: bool) -> Iterator[Block]:
        """Yield the global batches of an epoch, each with this rank's batches of it."""
        for number, block in enumerate(self._blocks):
            count = int(tf.shape(tf.nest.flatten(block)[0])[0])
            share = [self._rows(block, part.indices) for part in block_parts(self._plan, count, self._rank)]
            looked = looking and number & (number + 1) == 0
            yield count, evidence_of(_samples(block, min(count, SAMPLES))) if looked else [], share

    def _rows(self, block: Any, indices: Any) -> Any:
        return tf.nest.map_structure(lambda part: tf.gather(part, indices), block)


def _samples(block: Any, count: int) -> list[list[Any]]:
    columns = [part[:count].numpy() for part in tf.nest.flatten(block)]
    return [[column[place] for column in columns] for place in range(count)]


@on_all_ranks
def shard(
    data: Any,
    batch_size: int | None = None,
    *,
    shuffle: bool = True,
    seed: int = 0,
    uneven: str = "exact",
    accumulate: int = 1,
    steps_per_epoch: int | None = None,
    workers: int = 0,
    prefetch: int = 2,
    pin_memory: bool | str = "auto",
    train: bool = True,
) -> LoopBatches:
    """Step 3: this rank's batches, disjoint and complete over ranks, the same number on each.

    Args:
        data: An array, or a tuple, list or dict of arrays of one length, such as ``(x, y)`` or ``((x1, x2), y)``; or a
            ``tf.data.Dataset`` of single samples, which is sharded before anything else, so that its order depends on
            the number of processes. Of one of unknown length, every rank reads all and takes its share.
        batch_size: Samples per process and batch.
        shuffle: A new order every epoch.
        seed: The same on all ranks.
        uneven: ``exact`` (short batches are weighted), ``pad`` (samples repeat) or ``drop``.
        accumulate: Batches per optimizer update.
        steps_per_epoch: Updates per epoch and process; needed for endless data. Without it, an epoch of data of unknown
            length is all of them.
        workers: Not available here; ``tf.data`` has its own threads.
        prefetch: Batches prepared ahead.
        pin_memory: Not available here.
        train: False for evaluation: each sample once and in order, whatever ``shuffle`` says; none is repeated, and
            ranks may have different numbers of batches, one of them none. Call nothing in the loop that all ranks must
            call.

    Raises:
        DataError: The data are empty, too few for ``drop``, or not the same on all ranks.
        RecipeError: The data cannot be sharded as they are, or an option is not available.
    """
    batch_size = given_batch_size(batch_size)
    asked = Sharding(batch_size, shuffle, seed, uneven, accumulate, steps_per_epoch, workers, prefetch, pin_memory)
    refuse_loader_options(asked)
    refuse_sharded(data)
    world = worlds.current()
    if not train:
        return _evaluation(data, asked)
    if not isinstance(data, tf.data.Dataset):
        samples = samples_of(data, " or a tf.data.Dataset")
        check_same_arrays(world, data)
        plan = asked.plan(samples, world, whole=counts_passes() and accumulate > 1)
        return PlannedBatches(ArraySource(data, prefetch), plan, world.rank)
    if is_stream(data, asked):
        blocks, plan = in_blocks(data, asked, world).prefetch(prefetch), asked.block_plan(world)
        return ShardedStream(BlockSource(blocks, plan, world.rank), plan, world, None)
    own = own_samples(data, asked)
    if own.plan is not None:
        return PlannedBatches(DatasetSource(own, prefetch), own.plan, own.rank)
    assert steps_per_epoch is not None  # is_stream
    return StreamBatches(own.endless(batch_size).prefetch(prefetch), steps_per_epoch, accumulate, batch_size)


def _evaluation(data: Any, asked: Sharding) -> LoopBatches:
    check_evaluation(asked.uneven, asked.accumulate, asked.steps_per_epoch)
    world = worlds.current()
    if isinstance(data, tf.data.Dataset):
        mine = take_evaluation(data, world, asked.batch_size)
        return EvaluationStream(lambda: mine, samples_in(data), lambda: len(mine))
    plan = EvaluationPlan(samples_of(data, " or a tf.data.Dataset"), asked.batch_size, world.size)
    check_same_arrays(world, data)
    return EvaluationBatches(ArraySource(data, asked.prefetch), plan, world.rank)
