"""Callbacks that set the learning rate of one process in an optimizer whose rate is scaled."""

from __future__ import annotations

import math
from typing import Any

from hvdkit.job import world as worlds
from hvdkit.keras.rate_callbacks import LearningRateScheduleCallback
from hvdkit.keras_common.compat import keras, schedule_of
from hvdkit.keras_common.optimizers import rate_of
from hvdkit.keras_common.rates.scaled import base_of, times_scaled


def undone_scaling(model: Any, callbacks: list[Any], epochs: int, first: int) -> str | None:
    """Return what is wrong with the callbacks that set the rate of an epoch, or None.

    A schedule that takes the current rate and multiplies it is right as it is.

    Args:
        model: A compiled model.
        callbacks: Those given to ``fit``.
        epochs: Where ``fit`` ends.
        first: The epoch that it begins with.
    """
    optimizer = model.optimizer
    if optimizer is None or schedule_of(optimizer) is not None or not hasattr(optimizer, "learning_rate"):
        return None
    rate = rate_of(optimizer)
    base = base_of(rate)
    for callback in callbacks:
        if isinstance(callback, LearningRateScheduleCallback):
            if base is not None and math.isclose(callback.initial_lr, base, rel_tol=1e-6):
                return (
                    f"LearningRateScheduleCallback has initial_lr {base:g}, the rate of one process, which undoes "
                    f"scale_lr; give it the scaled one, {rate:g}"
                )
        elif isinstance(callback, keras().callbacks.LearningRateScheduler):
            found = _largest(callback.schedule, rate, epochs, first)
            hand_made = rate / worlds.current().size
            if found is not None and (
                found <= base * (1 + 1e-6) if base is not None else math.isclose(found, hand_made, rel_tol=1e-6)
            ):
                return (
                    f"LearningRateScheduler sets rates up to {found:g}, those of one process, but the optimizer's is "
                    f"scaled to {rate:g}: let its function return hvdkit.keras.scale_lr(rate), or multiply the current "
                    "rate that it gets as its second argument"
                )
    return None


def _largest(schedule: Any, rate: float, epochs: int, first: int) -> float | None:
    """Return the largest rate that a schedule sets; None if it multiplies the current one, or scales by itself."""
    scaled_before = times_scaled()
    start = _rate(schedule, first, rate)
    if times_scaled() > scaled_before or not math.isclose(_rate(schedule, first, 2 * rate), start, rel_tol=1e-6):
        return None
    return max([start, *(_rate(schedule, epoch, start) for epoch in range(epochs))])


def _rate(schedule: Any, epoch: int, rate: float) -> float:
    try:  # as Keras calls it
        return float(schedule(epoch, rate))
    except TypeError:
        return float(schedule(epoch))
