"""Step 5 for Keras optimizers: hooks on the instance, whose class and config stay as they are."""

from __future__ import annotations

import functools
from typing import Any

from hvdkit import world as worlds
from hvdkit.channels import open_channel
from hvdkit.errors import RecipeError
from hvdkit.keras_objects.reduction import Reduction
from hvdkit.keras_objects.versions import accumulate_in, before_clipping, check_optimizer, library

_MARK = "_hvdkit_reduction"


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
    check_arguments(compression, accumulate, clip_norm)
    if reduction_of(optimizer) is not None:
        raise RecipeError("this optimizer is distributed already; call distribute once for each optimizer")
    channel = open_channel(worlds.current(), library())
    channel.check_compression(compression)
    if accumulate > 1:
        accumulate_in(optimizer, accumulate)
    reduction = Reduction(channel, compression, clip_norm)
    object.__setattr__(optimizer, _MARK, reduction)
    if channel.size > 1 or clip_norm is not None:
        before_clipping(optimizer, reduction)
    if model is not None and count_samples and accumulate == 1 and channel.size > 1:
        _count_samples(model, reduction)
    return optimizer


def reduction_of(optimizer: Any) -> Reduction | None:
    """Return what reduces this optimizer's gradients, or None."""
    reduction: Reduction | None = getattr(optimizer, _MARK, None)
    return reduction


def check_arguments(compression: str, accumulate: int, clip_norm: float | None) -> None:
    """Check the arguments of ``distribute``.

    Raises:
        RecipeError: One of them has a wrong value.
    """
    if compression not in ("none", "fp16"):
        raise RecipeError(f"compression is {compression!r}; it must be none or fp16")
    if accumulate < 1:
        raise RecipeError(f"accumulate is {accumulate!r}; it must be a whole number >= 1")
    if clip_norm is not None and not clip_norm > 0:
        raise RecipeError(f"clip_norm is {clip_norm!r}; it must be > 0 or None")


def _count_samples(model: Any, reduction: Reduction) -> None:
    """Let the model's loss note the number of samples of each batch."""
    compute_loss = model.compute_loss

    @functools.wraps(compute_loss)
    def noting(*args: Any, **kwargs: Any) -> Any:
        reduction.note(_samples(kwargs.get("y_pred"), kwargs.get("sample_weight")))
        return compute_loss(*args, **kwargs)

    object.__setattr__(model, "compute_loss", noting)


def _samples(outputs: Any, sample_weight: Any) -> Any:
    """Return the length of a batch; 0 where all its samples weigh nothing, as in one that a rank only repeats."""
    while isinstance(outputs, (list, tuple, dict)):
        outputs = next(iter(outputs.values() if isinstance(outputs, dict) else outputs))
    if library() != "tf":
        return None if outputs is None else int(outputs.shape[0])
    import tensorflow as tf

    if outputs is None:
        return None
    length = outputs.shape[0] if outputs.shape[0] is not None else tf.shape(outputs)[0]
    if sample_weight is None:
        return length
    counted = tf.cast(tf.reduce_any(tf.not_equal(sample_weight, 0)), tf.float32)
    return tf.cast(length, tf.float32) * counted
