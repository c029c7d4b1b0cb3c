"""Two of the eight verbs that are the same in every framework."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hvdkit.job import metrics as neutral
from hvdkit.job import world as worlds
from hvdkit.job.arrays import on_host
from hvdkit.job.collective import on_all_ranks
from hvdkit.recipe.plan import scale_factor
from hvdkit.training.batches import Batches


def scale_lr(lr: float, rule: Any = "linear", accumulate: int = 1) -> float:
    """Step 4: scale the learning rate of one process by global batch / batch size.

    Args:
        lr: The learning rate of one process.
        rule: ``linear``, ``sqrt``, ``none``, or a callable that takes size * accumulate and returns the factor.
        accumulate: Micro-batches per update.

    Raises:
        RecipeError: The rule is unknown.
    """
    world = worlds.current()
    world.rate_factor = scale_factor(rule, world.size * accumulate)
    return lr * world.rate_factor


def steps(batches: Batches) -> int:
    """Return the optimizer updates per epoch, the same on every rank."""
    return batches.steps


@on_all_ranks
def average(metrics: Any, count: float = 1) -> Any:
    """Step 8: average a number, an array, a tensor or a dict of them over all ranks, weighted by counts.

    Args:
        metrics: This rank's value or values; called by all ranks with the same names, outside a ``tf.function``.
        count: How many samples stand behind them.

    Returns:
        A float, a float64 array for an array of several numbers, or a dict of them.

    Raises:
        RecipeError: The count is negative, or zero on all ranks, or a name is missing on a rank.
    """
    if isinstance(metrics, Mapping):
        metrics = {name: on_host(value) for name, value in metrics.items()}
    else:
        metrics = on_host(metrics)
    return neutral.average(worlds.current(), metrics, count)
