"""Loss and metrics of a model over data, without training."""

from __future__ import annotations

from typing import Any

from hvdkit.job import world as worlds
from hvdkit.job.collective import on_all_ranks
from hvdkit.keras_common.evaluation import evaluate_on
from hvdkit.tf.sharding import shard
from hvdkit.training.evaluation_batches import evaluation_of


@on_all_ranks
def evaluate(
    model: Any, data: Any, metrics: Any = (), *, loss: Any = None, batch_size: int | None = None
) -> dict[str, float]:
    """Return loss and metrics over data, exact over all ranks and the same on each; called by all ranks.

    BatchNorm's moving statistics are averaged over ranks first, if they differ.

    Args:
        model: A Keras model; it is called on the inputs of a batch with ``training=False``.
        data: What ``shard(train=False)`` returned, or what it takes.
        metrics: As in a recipe: ``"accuracy"``, Keras metric objects, which are left as they are, or callables
            ``(targets, outputs) -> mean``; one of these or several. ``"loss"`` may be among them.
        loss: A name as in a recipe, a Keras loss, or a callable ``(targets, outputs) -> mean``; its result, with what
            regularisers add, is called ``loss``.
        batch_size: Samples per process and batch of data that are not sharded yet; 32 if None.

    Raises:
        RecipeError: A metric is unknown or differs between ranks, the data are the batches of training, or there is
            nothing to measure.
        ModelError: A metric keeps something that cannot be added up over ranks.
        DataError: The data are empty, or not the same on all ranks.
    """
    batches = evaluation_of(data, lambda: shard(data, batch_size or 32, train=False))
    return evaluate_on(model, batches, metrics, loss, worlds.current(), "tf")
