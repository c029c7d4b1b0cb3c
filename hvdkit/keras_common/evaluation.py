"""Loss and metrics of a Keras model over data, without training."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from hvdkit.errors import RecipeError
from hvdkit.job.metrics import Sums
from hvdkit.job.world import World
from hvdkit.keras_common.compat import as_tensor, keras, library, to_numpy
from hvdkit.keras_common.measures import Measures
from hvdkit.keras_common.models import build_loss
from hvdkit.keras_common.state.files import synchronise_statistics
from hvdkit.recipe.trees import map_tree
from hvdkit.training.evaluation_batches import evaluation_pairs, metrics_and_loss
from hvdkit.training.modes import evaluating


def evaluate_on(model: Any, batches: Any, metrics: Any, loss: Any, world: World, framework: str) -> dict[str, float]:
    """Return loss and metrics of a model over batches of ``shard(train=False)``, over all ranks; see ``evaluate``."""
    if not isinstance(model, keras().Model):
        raise RecipeError(f"evaluate needs a model of this Keras, it got {type(model).__name__}")
    entries, source = metrics_and_loss(metrics, loss)
    measures = Measures(None if source is None else build_loss(source), entries, world, framework)
    synchronise_statistics(model)
    return measured_over(model, batches, measures, world)


def measured_over(
    model: Any, batches: Any, measures: Measures, world: World | None, tell: Callable[[Any], None] | None = None
) -> dict[str, float]:
    """Return loss and metrics over batches, over all ranks, None for this rank's own; ``tell`` is told each batch."""
    forward, sums = _forward(model), Sums()
    with _without_training(model), measures.objects.apart():
        for batch in evaluation_pairs(batches):
            if tell is not None:
                tell(batch)
            inputs, targets = (map_tree(as_tensor, side) for side in batch)
            outputs, penalty = forward(inputs)
            measures.add(sums, outputs, targets, batch.count, float(to_numpy(penalty)))
        found = (sums if world is None else sums.over_ranks(world)).means() | measures.objects.results(world)
    return {name: found[name] for name in [*measures.names, *found] if name in found}


def _forward(model: Any) -> Callable[[Any], Any]:
    """Return a function that gives a model's outputs without training, and what its layers add to the loss."""

    def forward(inputs: Any) -> Any:
        outputs = model(inputs, training=False)
        return outputs, sum(model.losses) if model.losses else np.float32(0)

    if library() != "tf":
        return forward
    return importlib.import_module("tensorflow").function(forward, reduce_retracing=True)


@contextmanager
def _without_training(model: Any) -> Iterator[None]:
    if library() != "torch":
        yield
        return
    with evaluating(model), importlib.import_module("torch").no_grad():
        yield
