"""Step 3: this rank's batches, as ``fit`` takes them."""

from __future__ import annotations

from typing import Any

from hvdkit.job import world as worlds
from hvdkit.job.collective import on_all_ranks
from hvdkit.keras.evaluation_batches import evaluation_batches
from hvdkit.keras.fit_batches import ArrayBatches, check_fit_form, refuse_loading
from hvdkit.keras.own_batches import own_batches, refuse_single_use
from hvdkit.keras_common.compat import counts_passes, indexed_dataset, library
from hvdkit.recipe.evaluation import check_evaluation
from hvdkit.recipe.trees import samples_of
from hvdkit.training.batches import Batches, Sharding, given_batch_size, refuse_sharded
from hvdkit.training.same_data import check_same_arrays


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
) -> Batches:
    """Step 3: this rank's batches, disjoint and complete over ranks, the same number on each.

    Args:
        data: ``(x, y)`` or ``(x, y, weights)``, where each may be a tree (tuple, list, dict) of arrays of one length;
            inputs alone, as an array, list or dict; a ``PyDataset`` (``Sequence`` in Keras 2), whose batches are shared
            out; or on TensorFlow a ``tf.data.Dataset`` of single samples, which is sharded before anything else, so
            that its order depends on the number of processes.
        batch_size: Samples per process and batch; the batches of a ``PyDataset`` have their own.
        shuffle: A new order every epoch.
        seed: The same on all ranks.
        uneven: ``exact`` (ranks are weighted by their samples), ``pad`` (samples repeat) or ``drop``.
        accumulate: Batches per optimizer update.
        steps_per_epoch: Updates per epoch and process; needed for endless data. Without it, an epoch of data of unknown
            length is all of them.
        workers: Not available here.
        prefetch: Batches prepared ahead (TensorFlow only).
        pin_memory: Not available here.
        train: False for evaluation: each sample once and in order, whatever ``shuffle`` says; none is repeated, and
            ranks may have different numbers of batches, one of them none.

    Returns:
        A data set for ``fit`` with ``len()`` and ``set_epoch(epoch)``, in its own order. Pass ``shuffle=False``
        to ``fit`` with it; a model that was given to ``distribute`` does so by itself. With ``train=False``, one for
        ``fit(validation_data=...)`` (beside ``MetricAverageCallback``), for ``hvdkit.keras.evaluate``, or a loop.

    Raises:
        DataError: The data are empty, too few for ``drop``, or not the same on all ranks.
        RecipeError: The data cannot be sharded as they are, or an option is not available.
    """
    own = isinstance(data, indexed_dataset()) and train
    size = given_batch_size(batch_size, 1 if own else None)
    asked = Sharding(size, shuffle, seed, uneven, accumulate, steps_per_epoch, workers, prefetch, pin_memory)
    world, whole = worlds.current(), counts_passes() and accumulate > 1
    refuse_sharded(data)
    if not train:
        check_evaluation(uneven, accumulate, steps_per_epoch)
        return evaluation_batches(data, asked)
    if own:
        return own_batches(data, batch_size, asked, world)
    refuse_single_use(data)
    check_fit_form(data)
    if library() != "tf":
        refuse_loading(asked)
        plan = asked.plan(samples_of(data, " or a PyDataset"), world, whole=whole)
        check_same_arrays(world, data)
        return ArrayBatches(data, plan, world.rank)
    from hvdkit.keras import fit_dataset
    from hvdkit.keras_common.data import tf_datasets

    tf_datasets.refuse_loader_options(asked)
    if tf_datasets.is_dataset(data):
        if tf_datasets.is_stream(data, asked):
            return fit_dataset.from_blocks(data, asked, world)
        return fit_dataset.from_samples(tf_datasets.own_samples(data, asked), asked)
    plan = asked.plan(samples_of(data, " or a tf.data.Dataset"), world, whole=whole)
    check_same_arrays(world, data)
    return fit_dataset.from_arrays(data, plan, world.rank, prefetch)
