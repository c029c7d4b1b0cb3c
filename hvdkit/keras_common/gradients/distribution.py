"""Step 5 for Keras optimizers: hooks on the instance, whose class and config stay as they are."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

from hvdkit.errors import ModelError, RecipeError
from hvdkit.keras_common.compat import (
    accumulate_in,
    applies_its_own_way,
    before_apply,
    before_clipping,
    check_model,
    check_optimizer,
    innermost,
    keras,
    library,
    scales_loss,
)
from hvdkit.keras_common.gradients.denominators import check_compiled_losses
from hvdkit.keras_common.gradients.reduction import Reduction, shared_channel
from hvdkit.keras_common.gradients.rows import sums_rows
from hvdkit.keras_common.gradients.sample_counts import check_lengths, note_samples
from hvdkit.recipe.steps import Distribute

_MARK = "_hvdkit_reduction"
_REDUCED = "_hvdkit_reduced"


def distribute_optimizer(
    optimizer: Any,
    model: Any,
    *,
    compression: str,
    accumulate: int,
    clip_norm: float | None,
    weigh: Callable[[list[Any]], list[Any]] | None,
) -> Any:
    """Reduce the gradients of a Keras optimizer once per update; the same object comes back.

    Args:
        optimizer: Of the Keras that the model belongs to.
        model: If given for ``fit``, its loss notes how many samples a batch has, so that short batches weigh less.
        compression: ``none`` or ``fp16``.
        accumulate: Passes per update.
        clip_norm: Global norm to which the reduced gradient is clipped.
        weigh: Weighs the gradients of each pass in a loop of one's own; None for ``fit``.

    Raises:
        RecipeError: It is distributed already, or an argument is wrong.
        ModelError: It cannot be distributed.
        EngineError: The engine cannot sum what the compression sends.
    """
    check_optimizer(optimizer)
    check_model(model)
    Distribute(compression, accumulate, clip_norm)
    inner = innermost(optimizer)
    if reduction_of(inner) is not None:
        raise RecipeError("this optimizer is distributed already; call distribute once for each optimizer")
    if applies_its_own_way(inner) and (accumulate > 1 or clip_norm is not None):
        raise ModelError(f"{type(inner).__name__} applies gradients in its own way; leave out accumulate and clip_norm")
    channel = shared_channel()
    reduction = Reduction(channel, compression, clip_norm)
    reduction.joins_rows = sums_rows(inner)
    if weigh is not None and (channel.size > 1 or accumulate > 1):
        reduction.weigh = weigh
    if library() == "torch" and channel.size > 1:
        _reduce_alone(optimizer, model)
    if channel.size > 1 and weigh is None and model is None:
        _check_wrapping_to_come(optimizer)
    _watch_apply(optimizer, reduction)
    if accumulate > 1:
        accumulate_in(inner, accumulate)
    if channel.size > 1 or clip_norm is not None:
        before_clipping(inner, reduction)
    object.__setattr__(inner, _MARK, reduction)
    if hasattr(model, "compile") and channel.size > 1:
        _watch_compile(model)
    if model is not None and weigh is None and channel.size > 1:
        if accumulate == 1:
            note_samples(model, reduction)
        else:
            check_lengths(model)
    return optimizer


def _reduce_alone(optimizer: Any, model: Any) -> None:
    from hvdkit.keras_common.gradients.torch_wrapping import reduce_alone  # it needs torch

    reduce_alone(optimizer, model)


def reduction_of(optimizer: Any) -> Reduction | None:
    """Return what reduces this optimizer's gradients, or None."""
    reduction: Reduction | None = getattr(optimizer, _MARK, None)
    return reduction


def _watch_apply(optimizer: Any, reduction: Reduction) -> None:
    """Check what is handed to an optimizer, and reduce there if the hook before clipping would come too late."""
    early = applies_its_own_way(optimizer)
    if early:
        reduction.average_early(scaled=scales_loss(optimizer))

    def change(gradients: list[Any], variables: list[Any]) -> list[Any]:
        refuse_reduced(gradients)
        if reduction.early and not early:
            return gradients  # averaged already
        complete = reduction.weigh(reduction.complete(gradients, variables))
        return reduction.average(complete) if early else complete

    before_apply(optimizer, change)
    object.__setattr__(optimizer, _MARK, reduction)


def follow_wrapping(optimizer: Any) -> None:
    """Reduce in the wrapper that ``compile`` has put around a distributed optimizer under ``mixed_float16``."""
    reduction = reduction_of(innermost(optimizer))
    if reduction is not None and scales_loss(optimizer) and reduction_of(optimizer) is None:
        _watch_apply(optimizer, reduction)


def _check_wrapping_to_come(optimizer: Any) -> None:
    if keras().mixed_precision.global_policy().name == "mixed_float16" and not scales_loss(optimizer):
        raise RecipeError(
            "under mixed_float16 compile puts a LossScaleOptimizer around this optimizer; give the model too: "
            "distribute(optimizer, model)"
        )


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
        if "experimental_run_tf_function" in kwargs:
            raise RecipeError(
                "compile has no experimental_run_tf_function any more; leave it out, gradients are reduced in the "
                "optimizer"
            )
        compile_model(*args, **kwargs)
        _check_compiled(model, xla=kwargs.get("jit_compile") is True)

    make_train_function = model.make_train_function

    @functools.wraps(make_train_function)
    def made(*args: Any, **kwargs: Any) -> Any:
        # the compile above is not the one that runs in model.compile(distribute(optimizer, model))
        follow_wrapping(model.optimizer)
        if library() == "tf" and model.jit_compile:
            model.jit_compile = False
            warnings.warn("jit_compile is off: XLA cannot compile the reduction of gradients", stacklevel=2)
        return make_train_function(*args, **kwargs)

    object.__setattr__(model, "compile", compiled)
    object.__setattr__(model, "make_train_function", made)


def _check_compiled(model: Any, xla: bool) -> None:
    follow_wrapping(model.optimizer)
    check_compiled_losses(model)
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
