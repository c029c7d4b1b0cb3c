"""Step 3: this rank's batches, as ``fit`` takes them."""

from __future__ import annotations

from typing import Any

import numpy as np

from hvdkit.errors import RecipeError
from hvdkit.job import world as worlds
from hvdkit.job.collective import on_all_ranks
from hvdkit.keras.fit_batches import ArrayBatches, FitBatches
from hvdkit.keras_common.compat import counts_passes, library
from hvdkit.recipe.trees import map_tree, samples_of
from hvdkit.training.batches import Sharding
from hvdkit.training.same_data import check_same_arrays


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
) -> FitBatches:
    """Step 3: this rank's batches, disjoint and complete over ranks, the same number on each.

    Args:
        data: ``(x, y)`` arrays, or on TensorFlow a ``tf.data.Dataset`` of single samples, which is sharded before
            anything else; its order then depends on the number of processes.
        batch_size: Samples per process and batch.
        shuffle: A new order every epoch.
        seed: The same on all ranks.
        uneven: ``exact`` (ranks are weighted by their samples), ``pad`` (samples repeat) or ``drop``.
        accumulate: Batches per optimizer update.
        steps_per_epoch: Updates per epoch and process; needed for endless data.
        workers: Not available here.
        prefetch: Batches prepared ahead (TensorFlow only).
        pin_memory: Not available here.

    Returns:
        A data set for ``fit`` with ``len()`` and ``set_epoch(epoch)``, in its own order. Pass ``shuffle=False``
        to ``fit`` with it; a model that was given to ``distribute`` does so by itself.

    Raises:
        DataError: The data are empty, too few for ``drop``, or, arrays, not the same on all ranks.
        RecipeError: The data cannot be sharded as they are, or an option is not available.
    """
    asked = Sharding(batch_size, shuffle, seed, uneven, accumulate, steps_per_epoch, workers, prefetch, pin_memory)
    world, whole = worlds.current(), counts_passes() and accumulate > 1
    if library() != "tf":
        _refuse_loading(asked)
        plan = asked.plan(samples_of(data), world, whole=whole)
        check_same_arrays(world, data)
        return ArrayBatches(data, plan, world.rank)
    from hvdkit.keras import fit_dataset
    from hvdkit.keras_common.data import tf_datasets

    tf_datasets.refuse_loader_options(asked)
    if tf_datasets.is_dataset(data):
        return fit_dataset.from_samples(tf_datasets.own_samples(data, asked), asked)
    plan = asked.plan(samples_of(data, " or a tf.data.Dataset"), world, whole=whole)
    check_same_arrays(world, data)
    return fit_dataset.from_arrays(data, plan, world.rank, prefetch)


def _refuse_loading(asked: Sharding) -> None:
    if asked.workers or asked.pin_memory is True or asked.prefetch != 2:
        raise RecipeError(
            "Shard.workers, prefetch and pin_memory are not available in Keras on torch or JAX; leave them out"
        )


def evaluation_batches(data: Any, batch_size: int) -> Any:
    """Return this rank's part of validation data, in order, each sample on one rank only."""
    world = worlds.current()
    if library() == "tf":
        from hvdkit.keras_common.data import tf_datasets

        return tf_datasets.take_evaluation(data, world, batch_size)
    samples_of(data)
    own = tuple(map_tree(lambda part: np.asarray(part)[world.rank :: world.size], side) for side in data)
    return ArrayBatches(own, Sharding(batch_size, shuffle=False).plan(samples_of(own), world, alone=True), 0)
