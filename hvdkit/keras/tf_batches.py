"""This rank's batches for Keras on TensorFlow: a ``tf.data.Dataset``."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hvdkit.errors import RecipeError
from hvdkit.job import world as worlds
from hvdkit.keras_common.compat import is_keras3
from hvdkit.keras_common.data.tf_datasets import (
    Sharded,
    check_pair,
    refuse_loader_options,
    shard_arrays,
    shard_dataset,
    take_evaluation,
)
from hvdkit.keras_common.data.weights import needs_weights
from hvdkit.recipe.plan import ShardPlan


def shard(
    data: Any, layout: dict[str, Any], order: dict[str, Any], prefetch: int, workers: int, pin_memory: bool | str
) -> Any:
    """Return this rank's training batches."""
    refuse_loader_options(workers, pin_memory)
    world = worlds.current()
    if isinstance(data, tf.data.Dataset):
        settings = {**layout, **order}
        sharded = shard_dataset(data, world, settings, order["limit"], prefetch)
        if sharded.plan is not None and needs_weights(sharded.plan):
            raise RecipeError(
                f"{sharded.plan.samples} samples leave a rank without a sample or with unequal passes at the end of "
                "an epoch, which fit cannot weight in a tf.data set; use uneven='drop' or 'pad'"
            )
        return _for_fit(sharded)
    check_pair(data)
    plan = ShardPlan(len(data[0]), **layout, **order, whole=is_keras3() and layout["accumulate"] > 1)
    return _for_fit(shard_arrays(data, plan, world.rank, prefetch, weighted=needs_weights(plan)))


def for_evaluation(data: Any, batch_size: int) -> Any:
    """Return this rank's part of validation data."""
    return take_evaluation(data, worlds.current(), batch_size)


def _for_fit(sharded: Sharded) -> Any:
    """Give a data set the attributes that a loop over epochs needs."""
    dataset = _counting_epochs(sharded) if sharded.plan is not None else sharded.dataset
    dataset.hvdkit_labels = sharded.labels
    dataset.hvdkit_steps = sharded.steps
    dataset.plan = sharded.plan
    dataset.hvdkit_weighted = len(dataset.element_spec) == 3
    dataset.hvdkit_samples = sharded.plan.samples - sharded.plan.dropped if sharded.plan is not None else None

    def set_epoch(epoch: int) -> None:
        sharded.epoch = epoch

    dataset.set_epoch = set_epoch
    return dataset


def _counting_epochs(sharded: Sharded) -> tf.data.Dataset:
    """Go on to the next epoch when the last batch is taken: ``fit`` also looks at a first batch and starts again."""
    last = sharded.passes - 1

    def note(index: Any) -> Any:
        if index == last:
            sharded.epoch += 1
        return index

    def taken(index: Any, batch: Any) -> Any:
        with tf.control_dependencies([tf.numpy_function(note, [index], tf.int64)]):
            return tf.nest.map_structure(tf.identity, batch)

    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    return sharded.dataset.enumerate().map(taken).with_options(options)
