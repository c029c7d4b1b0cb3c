"""Step 4: warm-up as a schedule of TensorFlow's own."""

from __future__ import annotations

from typing import Any

from hvdkit.keras_common.compat import keras
from hvdkit.recipe.plan import LearningRate


def warmup(target: float, *, base: float, steps_per_epoch: int, epochs: float = 5.0) -> Any:
    """Return a schedule that raises the rate linearly from ``base`` to ``target`` over the first epochs.

    It is a stock ``PolynomialDecay`` of power 1, so that a saved optimizer needs nothing of hvdkit
    (Goyal et al., 2017, section 2.2).

    Args:
        target: The scaled learning rate.
        base: The learning rate of one process.
        steps_per_epoch: Updates per epoch.
        epochs: Length of the warm-up.
    """
    rates = LearningRate(base, target, steps_per_epoch, epochs)
    return keras().optimizers.schedules.PolynomialDecay(
        rates.at(0), decay_steps=max(1, rates.warmup_steps - 1), end_learning_rate=target, power=1.0
    )
