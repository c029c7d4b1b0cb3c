"""Step 3: this rank's batches, as ``fit`` takes them."""

from __future__ import annotations

from typing import Any

from hvdkit.errors import RecipeError
from hvdkit.job import world as worlds
from hvdkit.keras_common.compat import library
from hvdkit.recipe.plan import ShardPlan


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
) -> Any:
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
        DataError: The data are empty, or too few for ``drop``.
        RecipeError: The data cannot be sharded as they are, or an option is not available.
    """
    world = worlds.current()
    layout: dict[str, Any] = {"batch_size": batch_size, "size": world.size, "accumulate": accumulate, "uneven": uneven}
    order: dict[str, Any] = {"shuffle": shuffle, "seed": seed, "limit": steps_per_epoch}
    if library() == "tf":
        from hvdkit.keras import tf_batches

        return tf_batches.shard(data, layout, order, prefetch, workers, pin_memory)
    from hvdkit.keras import array_batches

    if workers or pin_memory is True or prefetch != 2:
        raise RecipeError(
            "Shard.workers, prefetch and pin_memory are not available in Keras on torch or JAX; leave them out"
        )
    return array_batches.shard(data, ShardPlan(len(data[0]), **layout, **order, whole=accumulate > 1), world.rank)


def evaluation_batches(data: Any, batch_size: int) -> Any:
    """Return this rank's part of validation data, in order, each sample on one rank only."""
    world = worlds.current()
    if library() == "tf":
        from hvdkit.keras import tf_batches

        return tf_batches.for_evaluation(data, batch_size)
    from hvdkit.keras import array_batches

    return array_batches.for_evaluation(data, batch_size, world.size, world.rank)


def steps(batches: Any) -> int:
    """Return the optimizer updates per epoch."""
    return int(batches.hvdkit_steps)
