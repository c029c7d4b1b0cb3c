"""Neutral optimizers as Keras ones, and the learning rate of a Keras optimizer."""

from __future__ import annotations

from typing import Any

from hvdkit.errors import ModelError, RecipeError
from hvdkit.keras_common.compat import (
    before_update,
    check_optimizer,
    innermost,
    keras,
    schedule_of,
    to_numpy,
)
from hvdkit.keras_common.gradients.rows import join_rows_in, mark_joined
from hvdkit.keras_common.rates.schedules import largest_rate
from hvdkit.recipe import optimizers


def build_optimizer(source: Any) -> tuple[Any, float]:
    """Build a Keras optimizer; return it with the learning rate of one process.

    Raises:
        RecipeError: The source is neither an optimizer of hvdkit's nor a callable that returns a Keras one.
        ModelError: It is no optimizer of this Keras, or has no learning rate.
    """
    if isinstance(source, optimizers.Optimizer):
        optimizer = _translate(source)
        if not isinstance(source, optimizers.AdamW) and source.weight_decay:
            _add_l2(optimizer, source.weight_decay)
        elif not isinstance(source, optimizers.SGD):
            join_rows_in(optimizer)
        return optimizer, source.lr
    optimizer = source() if callable(source) else None
    if optimizer is None:
        raise RecipeError("Recipe.optimizer must be one of hvdkit's, or for Keras a callable that returns an optimizer")
    check_optimizer(optimizer)
    return optimizer, rate_of(optimizer)


def _translate(source: optimizers.Optimizer) -> Any:
    kinds = keras().optimizers
    if isinstance(source, optimizers.SGD):
        return kinds.SGD(source.lr, momentum=source.momentum, nesterov=source.nesterov)
    if isinstance(source, optimizers.Adagrad):
        return kinds.Adagrad(source.lr, initial_accumulator_value=source.initial_accumulator, epsilon=source.eps)
    betas = {"beta_1": source.betas[0], "beta_2": source.betas[1], "epsilon": source.eps}
    if isinstance(source, optimizers.AdamW):
        return kinds.AdamW(source.lr, weight_decay=source.weight_decay, **betas)
    return kinds.Adam(source.lr, **betas)


def _add_l2(optimizer: Any, decay: float) -> None:
    """Add decay * weight to the reduced and clipped gradient, as torch's optimizers do; Keras's own is decoupled."""

    def with_decay(gradients: list[Any], variables: list[Any]) -> list[Any]:
        return [gradient + decay * variable for gradient, variable in zip(gradients, variables, strict=True)]

    mark_joined(optimizer)  # such a sum is dense
    before_update(optimizer, with_decay)


def rate_of(optimizer: Any) -> float:
    """Return the current learning rate; of a schedule object, the largest.

    Raises:
        RecipeError: It is a schedule object of the user's own.
        ModelError: There is none.
    """
    schedule = schedule_of(optimizer)
    if schedule is not None:
        return largest_rate(schedule)
    if not hasattr(optimizer, "learning_rate"):
        raise ModelError(f"{type(optimizer).__name__} has no learning rate; scale those of its parts")
    return float(to_numpy(optimizer.learning_rate))


def set_rate(optimizer: Any, rate: float, momentum_correction: bool = True) -> None:
    """Set the learning rate, and scale momentum that has the old one folded in (Goyal et al., 2017, remark 2).

    Keras's SGD keeps v = m * v - lr * g, so v is multiplied by the new over the old rate. A schedule object stays.
    """
    if schedule_of(optimizer) is not None:
        return
    optimizer = innermost(optimizer)
    old = rate_of(optimizer)
    if old == rate:
        return
    optimizer.learning_rate = rate
    new = rate_of(optimizer)
    momentums = getattr(optimizer, "momentums", None) if type(optimizer).__name__ == "SGD" else None
    if old == 0 or new == old or not momentums or not momentum_correction:
        return
    for velocity in momentums:
        velocity.assign(velocity * (new / old))
