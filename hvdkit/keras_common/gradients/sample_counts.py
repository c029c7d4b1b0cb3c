"""What stands behind the loss of a batch, noted while a Keras model computes it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from hvdkit.keras_common.compat import keras, loss_tracker, survives_empty_masks
from hvdkit.keras_common.gradients.arithmetic import gradient_math
from hvdkit.keras_common.gradients.denominators import Mean, check_compiled_losses, divisor, refuse_varying, watching
from hvdkit.keras_common.gradients.reduction import Reduction
from hvdkit.recipe.trees import leaves


def note_samples(model: Any, reduction: Reduction) -> None:
    """Let a model's loss note what its mean stands for, for the reduction and for the loss that ``fit`` shows."""
    math = gradient_math()

    def note(length: Any, sample_weight: Any, found: list[Mean]) -> Noted:
        held: list[Any] = []

        def count() -> Any:
            # Keras 2 shows the loss while it computes it, Keras 3 afterwards
            if not held:
                held.append(_count(found, length, sample_weight))
            return held[0]

        def noted() -> None:
            reduction.count = count()

        _track(model, lambda value: math.if_any(value, count()), count)
        return noted

    _around_loss(model, note)
    test_step = model.test_step

    @functools.wraps(test_step)
    def forgetting(*args: Any, **kwargs: Any) -> Any:
        result = test_step(*args, **kwargs)
        reduction.count = None
        return result

    object.__setattr__(model, "test_step", forgetting)


def _count(found: list[Mean], length: Any, sample_weight: Any) -> Any:
    """Return what a batch's loss stands for: nothing where its samples are repeated ones, which do not count."""
    math, count = gradient_math(), divisor(found, length)
    if survives_empty_masks() and any(mean.per_sample is None for mean in found):
        count = math.above_zero(count)
    if sample_weight is None:
        return count
    return count * math.any_real(next(leaves(sample_weight)))


def check_lengths(model: Any) -> None:
    """Let a model that accumulates refuse losses whose weight among ranks its batches' lengths do not tell.

    Raises:
        ModelError: When it computes such a loss.
    """
    _around_loss(model, lambda _length, _weight, found: lambda: refuse_varying(found, "accumulation"))


def show_unweighted(model: Any) -> None:
    """Take the weights of hvdkit's batches, which make up for passes of unequal length, out of loss and metrics."""
    math = gradient_math()

    def note(length: Any, sample_weight: Any, _found: list[Mean]) -> None:
        if sample_weight is None:
            _track(model, lambda value: value, lambda: length)
            return
        weight = math.largest(sample_weight)
        real = math.any_weight(sample_weight)
        unit = weight + (1 - real)
        _track(model, lambda value: value / keras().ops.cast(unit, value.dtype), lambda: length * real)

    _around_loss(model, note)
    compute_metrics = model.compute_metrics

    @functools.wraps(compute_metrics)
    def counting(x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        if sample_weight is not None:
            one = keras().ops.cast(math.any_weight(sample_weight), sample_weight.dtype)
            sample_weight = sample_weight * 0 + one
        return compute_metrics(x, y, y_pred, sample_weight)

    object.__setattr__(model, "compute_metrics", counting)


Noted = Callable[[], None]


def _around_loss(model: Any, note: Callable[[Any, Any, list[Mean]], Noted | None]) -> None:
    """Call ``note(length of the batch, sample weights, losses)`` before a model computes its loss; its result, after.

    The list of losses fills meanwhile.
    """
    compute_loss = model.compute_loss
    signature = inspect.signature(compute_loss)

    @functools.wraps(compute_loss)
    def noting(*args: Any, **kwargs: Any) -> Any:
        check_compiled_losses(model)  # compile may have been looked up before it could be watched
        given = signature.bind(*args, **kwargs).arguments
        if given.get("y_pred") is None:
            return compute_loss(*args, **kwargs)
        with watching() as found:
            length = gradient_math().length(next(leaves(given["y_pred"])))
            noted = note(length, given.get("sample_weight"), found)
            result = compute_loss(*args, **kwargs)
        if noted is not None:
            noted()
        return result

    object.__setattr__(model, "compute_loss", noting)


def _track(model: Any, change: Callable[[Any], Any], count: Callable[[], Any]) -> None:
    """Let the next batch's loss be shown as ``change(loss)``, counted ``count()`` times."""
    tracker = loss_tracker(model)
    if tracker is None:
        return
    update = type(tracker).update_state

    def counted(values: Any, **_: Any) -> Any:
        return update(tracker, change(values), sample_weight=count())

    object.__setattr__(tracker, "update_state", counted)
