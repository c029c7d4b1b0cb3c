"""Step 5 for Keras optimizers: hooks on the instance, whose class and config stay as they are."""

from __future__ import annotations

import functools
from typing import Any

from hvdkit.errors import ModelError, RecipeError
from hvdkit.keras_objects.counting import note_samples
from hvdkit.keras_objects.reduction import Reduction, shared_channel
from hvdkit.keras_objects.versions import (
    accumulate_in,
    before_apply,
    before_clipping,
    check_loss_scaling,
    check_optimizer,
    library,
)
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
    if hasattr(model, "compile") and channel.size > 1:
        _watch_compile(model)
    if model is not None and count_samples and accumulate == 1 and channel.size > 1:
        note_samples(model, reduction)
    return optimizer


def reduction_of(optimizer: Any) -> Reduction | None:
    """Return what reduces this optimizer's gradients, or None."""
    reduction: Reduction | None = getattr(optimizer, _MARK, None)
    return reduction


def _watch_compile(model: Any) -> None:
    """Refuse ways to compile a model under which its gradients would not be reduced, or not on all ranks.

    Raises:
        ModelError: The model is compiled so already.
    """
    if getattr(model, "optimizer", None) is not None:
        _check_compiled(model, xla=bool(model.jit_compile))
    compile_model = model.compile

    @functools.wraps(compile_model)
    def compiled(*args: Any, **kwargs: Any) -> None:
        compile_model(*args, **kwargs)
        _check_compiled(model, xla=kwargs.get("jit_compile") is True)
        if library() == "tf" and model.jit_compile:  # Keras has decided so by itself
            model.jit_compile = False

    object.__setattr__(model, "compile", compiled)


def _check_compiled(model: Any, xla: bool) -> None:
    check_loss_scaling(model.optimizer)
    if xla and library() == "tf":
        raise ModelError(
            "XLA cannot compile the reduction of gradients on TensorFlow; compile the model with jit_compile=False"
        )


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
