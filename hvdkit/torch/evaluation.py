"""Loss and metrics of a model over data, without training."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch.utils.data import DataLoader

from hvdkit.errors import RecipeError
from hvdkit.job import world as worlds
from hvdkit.job.collective import on_all_ranks
from hvdkit.recipe.trees import map_tree
from hvdkit.torch.building import build_loss
from hvdkit.torch.copies import Copies
from hvdkit.torch.measures import Measures
from hvdkit.torch.sharding import shard
from hvdkit.torch.synchronising import synchronise_statistics
from hvdkit.training.evaluation_batches import evaluation_of, metrics_and_loss
from hvdkit.training.modes import evaluating


@on_all_ranks
def evaluate(
    model: torch.nn.Module, data: Any, metrics: Any = (), *, loss: Any = None, batch_size: int | None = None
) -> dict[str, float]:
    """Return loss and metrics over data, exact over all ranks and the same on each; called by all ranks.

    The model runs in eval mode without gradients; each of its modules gets its mode back. BatchNorm's running
    statistics are averaged over ranks first, if they differ.

    Args:
        model: It is given the inputs of a batch, on its device.
        data: What ``shard(train=False)`` returned, or what it takes.
        metrics: As in a recipe: ``"accuracy"``, callables ``(outputs, targets) -> mean``, objects of torchmetrics,
            which are left as they are; one of these or several. ``"loss"`` may be among them.
        loss: A name as in a recipe, or a callable ``(outputs, targets) -> mean``; its result is called ``loss``.
        batch_size: Samples per process and batch of data that are not sharded yet: that of a ``DataLoader``, else 32.

    Raises:
        RecipeError: A metric is unknown, cannot be joined over ranks, or differs between them; or the data are the
            batches of training.
        DataError: The data are empty, or not the same on all ranks.
    """
    world = worlds.current()
    entries, source = metrics_and_loss(metrics, loss)
    if not isinstance(model, torch.nn.Module):
        raise RecipeError(f"evaluate needs a torch.nn.Module, it got {type(model).__name__}")
    own = data.batch_size if isinstance(data, DataLoader) else None
    batches = evaluation_of(data, lambda: shard(data, batch_size or own or 32, train=False))
    device = next((part.device for part in itertools.chain(model.parameters(), model.buffers())), torch.device("cpu"))
    measures = Measures(None if source is None else build_loss(source), entries, device, world)

    copies = Copies(device)

    def place(batch: Any) -> list[Any]:
        return [map_tree(copies.bring, side) for side in batch]

    synchronise_statistics(model)
    with evaluating(model):
        results: dict[str, float] = measures.over(model, batches, place, world)
    return {name: results[name] for name in [*measures.names, *results] if name in results}
