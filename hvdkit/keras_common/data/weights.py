"""Weights of samples in batches that ``fit`` cannot weight by their length alone."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvdkit.keras_common.compat import keras
from hvdkit.recipe.plan import MicroBatch, ShardPlan

# the weight of a sample that is repeated and does not count; its sign tells it from a zero of the user's
NOT_COUNTED = -0.0


def needs_weights(plan: ShardPlan) -> bool:
    """Say whether batches must carry weights: a rank repeats a sample, or passes of an update differ in length."""
    rest = plan.samples - (plan.steps - 1) * plan.global_batch
    uneven = 0 < rest < plan.global_batch and plan.uneven == "exact"
    return uneven and (plan.accumulate > 1 or rest < plan.size)


def weight_type() -> str:
    """Return the dtype of the weights: that of a loss in double precision, else ``float32``."""
    return "float64" if keras().backend.floatx() == "float64" else "float32"


def sample_weights(part: MicroBatch, plan: ShardPlan) -> NDArray[np.floating[Any]]:
    """Return one weight per sample: 1, or -0.0 for a repeated one; with several passes per update the batch's weight.

    By its sign, the zero of a sample that does not count is told from one that the user has given.
    """
    weight = (part.weight if plan.accumulate > 1 else 1.0) if part.weight > 0 else NOT_COUNTED
    return np.full(len(part.indices), weight, weight_type())


def with_weights(batch: Any, weights: Any) -> tuple[Any, Any, Any]:
    """Return ``(x, y, weights)`` of a batch ``(x, y)``; weights that the user gave are multiplied."""
    inputs, targets, *own = batch
    if own:
        weights = own[0] * weights[(..., *[None] * (len(own[0].shape) - 1))]
    return inputs, targets, weights
