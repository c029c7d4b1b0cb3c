"""Step 3 for TensorFlow: ``tf.data`` sets of batches, from arrays or the user's own data set."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from hvdkit.errors import DataError, RecipeError
from hvdkit.job import world as worlds
from hvdkit.job.world import World
from hvdkit.keras_common.data.order_checks import check_order, in_one_order
from hvdkit.keras_common.data.weights import weight_type, with_weights
from hvdkit.recipe.plan import MicroBatch, ShardPlan
from hvdkit.recipe.trees import is_branch, map_tree, of_arrays
from hvdkit.training.batches import Sharding

Weigh = Callable[[MicroBatch], Any]


def array_batches(data: Any, parts: Callable[[], list[MicroBatch]], weigh: Weigh | None = None) -> Any:
    """Return a data set of batches of arrays, made in the background.

    Args:
        data: An array, or a tuple, list or dict of arrays of one length.
        parts: Says at the start of each iteration what its batches are made of.
        weigh: Returns one weight per sample of ``(x, y)`` or, with weights of the user's, ``(x, y, weights)``; None for
            batches as they are.
    """
    tree = as_tuples(data)

    def batches() -> Iterator[Any]:
        for part in parts():
            batch = map_tree(operator.itemgetter(part.indices), tree)
            yield batch if weigh is None else with_weights(batch, weigh(part))

    signature = map_tree(lambda array: tf.TensorSpec((None, *array.shape[1:]), array.dtype), tree)
    if weigh is not None:
        signature = (*signature[:2], tf.TensorSpec((None,), weight_type()))
    dataset = tf.data.Dataset.from_generator(batches, output_signature=signature)
    return dataset.apply(tf.data.experimental.assert_cardinality(len(parts())))


def as_tuples(data: Any) -> Any:
    """Return a tree of arrays in which lists are tuples: ``tf.data`` takes a list for an array."""
    return _without_lists(of_arrays(np.asarray, data))


def _without_lists(tree: Any) -> Any:
    if not is_branch(tree):
        return tree
    if isinstance(tree, dict):
        return {name: _without_lists(part) for name, part in tree.items()}
    parts = [_without_lists(part) for part in tree]
    return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)


@dataclass(frozen=True)
class OwnSamples:
    """This rank's part of the user's own data set of single samples.

    Attributes:
        dataset: The samples, shuffled if that was asked for.
        plan: How they are laid out in batches; None for a stream.
        rank: This rank.
    """

    dataset: Any
    plan: ShardPlan | None
    rank: int

    def in_parts(self, parts: list[MicroBatch]) -> Any:
        """Return a data set of batches in the lengths of an epoch."""
        counts = [len(part.indices) for part in parts]
        return _in_lengths(self.dataset.take(sum(counts)), counts, max(counts))

    def endless(self, batch_size: int) -> Any:
        """Return a data set of full batches of data that begin again at their end."""
        return self.dataset.batch(batch_size, drop_remainder=True)


def own_samples(data: Any, asked: Sharding) -> OwnSamples:
    """Take this rank's part of a data set of known length, or of an endless one, before shuffle and batch.

    Args:
        data: A ``tf.data.Dataset`` of single samples that is neither batched nor repeated; of no known length only with
            ``steps_per_epoch``.
        asked: What ``shard`` was asked for.

    Raises:
        RecipeError: The data set is batched, repeated without steps, shuffled without a seed, or sharded already.
        DataError: The data are empty, too few, or not the same on all ranks.
    """
    world = worlds.current()
    samples, seed = length_of(data), asked.seed + world.rank
    if samples == 0:
        raise DataError("the training data are empty; give at least one sample")
    check_order(data, world)
    data = in_one_order(data)
    if samples is None:
        asked.block_plan(world)  # refuses what cannot be asked for
        mine = data.repeat().shard(world.size, world.rank)
        return OwnSamples(mine.shuffle(10 * asked.batch_size, seed=seed) if asked.shuffle else mine, None, world.rank)
    plan = asked.plan(samples, world, shuffle=False)
    mine = data.shard(world.size, world.rank)
    if asked.shuffle:
        mine = mine.shuffle(min(samples, 10_000), seed=seed)
    # a rank that has run out of samples repeats one, at weight 0 or as padding
    return OwnSamples(mine.concatenate(data.take(1)), plan, world.rank)


def length_of(data: Any) -> int | None:
    """Return how many samples a data set has; None where it is endless or not known."""
    cardinality = int(data.cardinality().numpy())
    return None if cardinality < 0 else cardinality


def is_stream(data: Any, asked: Sharding) -> bool:
    """Say whether an epoch is a whole data set of unknown length.

    Raises:
        RecipeError: It is endless.
    """
    if length_of(data) is not None or asked.steps_per_epoch is not None:
        return False
    if data.cardinality() == tf.data.INFINITE_CARDINALITY:
        raise RecipeError("the data set is endless; give Recipe(steps_per_epoch=...)")
    return True


def in_blocks(data: Any, asked: Sharding, world: World) -> Any:
    """Return all samples of a data set of unknown length in global batches, the same on every rank.

    Raises:
        RecipeError: The data set is batched, repeated, shuffled without a seed, or sharded already.
        DataError: It is not the same on all ranks.
    """
    check_order(data, world)
    full = asked.block_plan(world).global_batch
    data = in_one_order(data)
    if asked.shuffle:
        data = data.shuffle(10 * full, seed=asked.seed + 1)  # seed 0 would be none
    return data.batch(full, drop_remainder=asked.uneven == "drop")


def _in_lengths(samples: Any, counts: list[int], batch: int) -> Any:
    """Batch samples in the lengths of the plan."""
    batches = samples.batch(batch)
    if any(count != batch for count in counts):
        # one pass over the samples, which may be shuffled
        batches = batches.rebatch(np.array(counts, np.int64))
    return batches.apply(tf.data.experimental.assert_cardinality(len(counts)))


def is_dataset(data: Any) -> bool:
    """Say whether data are a ``tf.data.Dataset``."""
    return isinstance(data, tf.data.Dataset)


def refuse_loader_options(asked: Sharding) -> None:
    """Refuse what ``tf.data`` cannot do.

    Raises:
        RecipeError: Worker processes or pinned memory are asked for.
    """
    if asked.workers:
        raise RecipeError(f"Shard.workers is {asked.workers}, but tf.data has its own threads; leave it at 0")
    if asked.pin_memory is True:
        raise RecipeError("Shard.pin_memory is True, but tf.data places batches itself; use 'auto'")


def take_evaluation(data: Any, world: World, batch_size: int) -> Any:
    """Return this rank's part of a data set of single samples in batches, in order, each sample on one rank only.

    Raises:
        RecipeError: Its order would differ between ranks, or it is batched.
        DataError: It is endless or empty.
    """
    check_order(data, world)
    data = in_one_order(data)
    if data.cardinality() == tf.data.INFINITE_CARDINALITY:
        raise DataError("the validation data are endless; limit them with take(n)")
    if data.cardinality() == 0:
        raise DataError("the data are empty; give at least one sample")
    return data.shard(world.size, world.rank).batch(batch_size)
