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
from hvdkit.keras_common.data.weights import weight_type
from hvdkit.recipe.plan import MicroBatch, ShardPlan
from hvdkit.recipe.trees import is_branch, map_tree, samples_of
from hvdkit.training.batches import Sharding

Weigh = Callable[[MicroBatch], Any]


def array_batches(data: Any, parts: Callable[[], list[MicroBatch]], weigh: Weigh | None = None) -> Any:
    """Return a data set of batches of ``(x, y)``, made in the background.

    Args:
        data: Two arrays or trees of arrays.
        parts: Says at the start of each iteration what its batches are made of.
        weigh: Returns one weight per sample; None for batches without weights.
    """
    pair = _arrays(data)

    def batches() -> Iterator[Any]:
        for part in parts():
            batch = map_tree(operator.itemgetter(part.indices), pair)
            yield batch if weigh is None else (*batch, weigh(part))

    signature = map_tree(lambda array: tf.TensorSpec((None, *array.shape[1:]), array.dtype), pair)
    if weigh is not None:
        signature = (*signature, tf.TensorSpec((None,), weight_type()))
    dataset = tf.data.Dataset.from_generator(batches, output_signature=signature)
    return dataset.apply(tf.data.experimental.assert_cardinality(len(parts())))


def _arrays(data: Any) -> Any:
    """Return a pair of trees of arrays in which lists are tuples: ``tf.data`` takes a list for an array."""
    return tuple(map_tree(np.asarray, _without_lists(side)) for side in data)


def _without_lists(tree: Any) -> Any:
    if not is_branch(tree):
        return tree
    if isinstance(tree, dict):
        return {name: _without_lists(part) for name, part in tree.items()}
    return tuple(_without_lists(part) for part in tree)


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
        """Return a data set of full batches that begins again at its end."""
        return self.dataset.repeat().batch(batch_size, drop_remainder=True)


def own_samples(data: Any, asked: Sharding) -> OwnSamples:
    """Take this rank's part of a data set, before shuffle and batch.

    Args:
        data: A ``tf.data.Dataset`` of single samples that is neither batched nor repeated; endless or of unknown length
            only with ``steps_per_epoch``.
        asked: What ``shard`` was asked for.

    Raises:
        RecipeError: The data set is batched, repeated without steps, or shuffled without a seed.
        DataError: The data are empty or too few.
    """
    world = worlds.current()
    _check_order(data)
    samples = int(data.cardinality().numpy())
    if samples == 0:
        raise DataError("the training data are empty; give at least one sample")
    mine, seed = data.shard(world.size, world.rank), asked.seed + world.rank
    if samples < 0:
        if asked.steps_per_epoch is None:
            raise RecipeError("the data set is endless or of unknown length; give Recipe(steps_per_epoch=...)")
        return OwnSamples(mine.shuffle(10 * asked.batch_size, seed=seed) if asked.shuffle else mine, None, world.rank)
    plan = asked.plan(samples, world, shuffle=False)
    if asked.shuffle:
        mine = mine.shuffle(min(samples, 10_000), seed=seed)
    # a rank that has run out of samples repeats one, at weight 0 or as padding
    return OwnSamples(mine.concatenate(data.take(1)), plan, world.rank)


def _in_lengths(samples: Any, counts: list[int], batch: int) -> Any:
    """Batch samples in the lengths of the plan."""
    batches = samples.batch(batch)
    if any(count != batch for count in counts):
        # one pass over the samples, which may be shuffled
        batches = batches.rebatch(np.array(counts, np.int64))
    return batches.apply(tf.data.experimental.assert_cardinality(len(counts)))


def _check_order(data: Any) -> None:
    """Refuse what makes shards overlap or leave gaps."""
    node: Any = data
    while node is not None:
        kind = type(node).__name__.strip("_")
        if "Batch" in kind:
            raise RecipeError("the data set is batched already; give single samples, hvdkit shards and batches them")
        if kind.startswith("Repeat") and data.cardinality() != tf.data.INFINITE_CARDINALITY:
            raise RecipeError("the data set repeats before the shard; leave repeat() out and give more epochs")
        if kind.startswith("Shuffle") and not _is_seeded(node):
            raise RecipeError(
                "the data set is shuffled before the shard without a seed, so shards would overlap; "
                "leave shuffle() out (hvdkit shuffles after the shard) or give it a seed"
            )
        node = next(iter(node._inputs()), None) if hasattr(node, "_inputs") else None


def _is_seeded(node: Any) -> bool:
    return any(int(tf.get_static_value(seed) or 0) for seed in (node._seed, node._seed2))


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
    """Return this rank's part of validation data, in order, each sample on one rank only.

    Raises:
        DataError: There are fewer samples than processes.
    """
    if not isinstance(data, tf.data.Dataset):
        samples_of(data)
        data = tf.data.Dataset.from_tensor_slices(_arrays(data))
    else:
        _check_order(data)
    if data.cardinality() == tf.data.INFINITE_CARDINALITY:
        raise DataError("the validation data are endless; limit them with take(n)")
    if 0 <= int(data.cardinality().numpy()) < world.size:
        raise DataError(f"there are fewer validation samples than the {world.size} processes; give at least one each")
    return data.shard(world.size, world.rank).batch(batch_size)
