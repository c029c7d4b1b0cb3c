"""Step 5 for Keras optimizers: hooks on the instance, whose class and config stay as they are."""

from __future__ import annotations

from typing import Any

from hvdkit.errors import RecipeError
from hvdkit.keras_objects.counting import note_samples
from hvdkit.keras_objects.reduction import Reduction, shared_channel
from hvdkit.keras_objects.versions import accumulate_in, before_apply, before_clipping, check_optimizer
from hvdkit.recipe import Distribute

_MARK = "_hvdkit_reduction"
_REDUCED = "_hvdkit_reduced"


def distribute_optimizer(
    optimizer: Any, model: Any, *, compression: str, accumulate: int, clip_norm: float | None, count_samples: bool
) -> Any:
    """Reduce the gradients of a Keras optimizer once per update; the same object comes back.

    Args:
        optimizer: Of the Keras that the model belongs to.
        model: If given and ``count_samples``, its loss notes how many samples a batch has, so that short batches
            weigh less.
        compression: ``none`` or ``fp16``.
        accumulate: Passes per update.
        clip_norm: Global norm to which the reduced gradient is clipped.
        count_samples: Weight ranks by their samples; otherwise the loop weights its loss itself.

    Raises:
        RecipeError: It is distributed already, or an argument is wrong.
        ModelError: It cannot be distributed.
        EngineError: The engine cannot sum what the compression sends.
    """
    check_optimizer(optimizer)
    Distribute(compression, accumulate, clip_norm)
    if reduction_of(optimizer) is not None:
        raise RecipeError("this optimizer is distributed already; call distribute once for each optimizer")
    channel = shared_channel()
    channel.check_compression(compression)
    if accumulate > 1:
        accumulate_in(optimizer, accumulate)
    before_apply(optimizer, refuse_reduced)
    reduction = Reduction(channel, compression, clip_norm)
    object.__setattr__(optimizer, _MARK, reduction)
    if channel.size > 1 or clip_norm is not None:
        before_clipping(optimizer, reduction)
    if model is not None and count_samples and accumulate == 1 and channel.size > 1:
        note_samples(model, reduction)
    return optimizer


def reduction_of(optimizer: Any) -> Reduction | None:
    """Return what reduces this optimizer's gradients, or None."""
    reduction: Reduction | None = getattr(optimizer, _MARK, None)
    return reduction


def mark_reduced(gradients: list[Any]) -> None:
    """Mark gradients that a distributed tape returns."""
    for gradient in gradients:
        if gradient is not None:
            setattr(gradient, _REDUCED, True)


def refuse_reduced(gradients: list[Any]) -> None:
    """Refuse gradients that are averaged already.

    Raises:
        RecipeError: A distributed tape has returned them.
    """
    if any(getattr(gradient, _REDUCED, False) for gradient in gradients):
        raise RecipeError(
            "these gradients come from a distributed tape, and the optimizer is distributed too; take one of them"
        )
