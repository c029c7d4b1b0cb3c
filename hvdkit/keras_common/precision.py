"""What Keras models compute in, by the dtype policy under which they are built; weights stay float32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hvdkit.errors import RecipeError
from hvdkit.keras_common.compat import keras, loss_scale_optimizer, scales_loss, set_policy
from hvdkit.keras_common.gradients.distribution import follow_wrapping
from hvdkit.recipe.declaration import Recipe

_POLICIES = {"bf16": "mixed_bfloat16", "fp16": "mixed_float16"}


@contextmanager
def computing_in(precision: str) -> Iterator[None]:
    """Let the layers that are built meanwhile compute in ``bf16`` or ``fp16``; ``fp32`` leaves the user's policy."""
    if precision not in _POLICIES:
        yield
        return
    mixed = keras().mixed_precision
    before = mixed.global_policy()
    mixed.set_global_policy(_POLICIES[precision])
    try:
        yield
    finally:
        set_policy(before)


def scaling_loss(optimizer: Any, recipe: Recipe) -> Any:
    """Return the optimizer for a custom loop: under ``fp16`` in the wrapper that scales the loss.

    Raises:
        RecipeError: The recipe compresses gradients, which would hide an overflow.
    """
    if recipe.precision != "fp16" or scales_loss(optimizer):
        return optimizer
    scaled = loss_scale_optimizer()(optimizer)
    follow_wrapping(scaled)
    return scaled


def check_precision(recipe: Recipe) -> None:
    """Refuse what does not go with a precision.

    Raises:
        RecipeError: Accumulation under ``fp16``, where Keras leaves single passes out of an update.
    """
    if recipe.precision == "fp16" and recipe.distribute is not None and recipe.distribute.accumulate > 1:
        raise RecipeError(
            "precision 'fp16' does not go with accumulate in Keras, which would leave single passes out of an update; "
            "use 'bf16', or accumulate=1"
        )
