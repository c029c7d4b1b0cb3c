"""Loss and metrics of a model over data, without training."""

from __future__ import annotations

from typing import Any

from hvdkit.errors import RecipeError
from hvdkit.job import world as worlds
from hvdkit.job.arrays import on_host
from hvdkit.job.collective import on_all_ranks
from hvdkit.job.world import World
from hvdkit.keras.metric_sums import summed_results
from hvdkit.keras.sharding import shard
from hvdkit.keras_common.evaluation import evaluate_on
from hvdkit.keras_common.state.files import synchronise_statistics
from hvdkit.recipe.trees import map_tree
from hvdkit.training.evaluation_batches import evaluation_of
from hvdkit.training.metric_objects import flat_results


@on_all_ranks
def evaluate(
    model: Any, data: Any, metrics: Any = None, *, loss: Any = None, batch_size: int | None = None
) -> dict[str, float]:
    """Return loss and metrics over data, exact over all ranks and the same on each; called by all ranks.

    BatchNorm's moving statistics are averaged over ranks first, if they differ.

    Args:
        model: It is called on the inputs of a batch with ``training=False``.
        data: What ``shard(train=False)`` returned, or what it takes.
        metrics: ``"accuracy"``, Keras metric objects, which are left as they are, or callables
            ``(targets, outputs) -> mean``; one of these or several. ``"loss"`` may be among them. Without metrics and
            loss: those that the model was compiled with.
        loss: A name as in a recipe, a Keras loss, or a callable ``(targets, outputs) -> mean``; its result, with what
            regularisers add, is called ``loss``.
        batch_size: Samples per process and batch of data that are not sharded yet; 32 if None.

    Raises:
        RecipeError: A metric is unknown or differs between ranks, the data are the batches of training, or there is
            nothing to measure.
        ModelError: A metric keeps something that cannot be added up over ranks.
        DataError: The data are empty, or not the same on all ranks.
    """
    world = worlds.current()
    batches = evaluation_of(data, lambda: shard(data, batch_size or 32, train=False))
    if metrics is None and loss is None and getattr(model, "compiled", True) and getattr(model, "loss", None):
        return evaluate_compiled(model, batches, world)
    return evaluate_on(model, batches, metrics, loss, world, "keras")


def evaluate_compiled(model: Any, batches: Any, world: World | None) -> dict[str, float]:
    """Return what a model was compiled to measure, over all ranks; None for this rank's own; called by all ranks.

    Raises:
        ModelError: A metric keeps something that cannot be added up over ranks.
    """
    synchronise_statistics(model)
    first = next(iter(batches), None)
    if first is not None:
        own = model.evaluate(batches, verbose=0, return_dict=True)
    if world is None:
        if first is None:
            raise RecipeError("this rank has no sample to evaluate, and Recipe.average is None")
        return _named_floats(own)
    has_samples = world.engine.allgather_object(first is not None)
    if not all(has_samples):
        batch = first if isinstance(first, tuple) else (first,)
        sample = world.broadcast_object(None if first is None else map_tree(on_host, batch))
        if first is None:
            # build the metrics that others have built; then empty them
            model.test_on_batch(*sample)
            model.reset_metrics()
    return _named_floats(summed_results(model, world))


def _named_floats(results: dict[str, Any]) -> dict[str, float]:
    return {key: value for name, result in results.items() for key, value in flat_results(name, result).items()}
