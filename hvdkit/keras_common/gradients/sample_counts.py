"""How many samples stand behind a batch, noted while a Keras model computes its loss."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from hvdkit.keras_common.compat import keras, loss_tracker
from hvdkit.keras_common.gradients.reduction import Reduction, gradient_math
from hvdkit.recipe.trees import leaves


def note_samples(model: Any, reduction: Reduction) -> None:
    """Let a model's loss note how many samples a batch has, for the reduction and for the loss that ``fit`` shows."""

    def note(length: Any, sample_weight: Any) -> None:
        reduction.count = length if sample_weight is None else length * gradient_math().any_weight(sample_weight)
        _track(model, lambda value: value, reduction.count)

    _before_loss(model, note)
    test_step = model.test_step

    @functools.wraps(test_step)
    def forgetting(*args: Any, **kwargs: Any) -> Any:
        result = test_step(*args, **kwargs)
        reduction.count = None
        return result

    object.__setattr__(model, "test_step", forgetting)


def show_unweighted(model: Any) -> None:
    """Take the weights of hvdkit's batches, which make up for passes of unequal length, out of loss and metrics."""
    math = gradient_math()

    def note(length: Any, sample_weight: Any) -> None:
        if sample_weight is None:
            _track(model, lambda value: value, length)
            return
        weight = math.largest(sample_weight)
        real = math.any_weight(sample_weight)
        divisor = weight + (1 - real)
        _track(model, lambda value: value / keras().ops.cast(divisor, value.dtype), length * real)

    _before_loss(model, note)
    compute_metrics = model.compute_metrics

    @functools.wraps(compute_metrics)
    def counting(x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        if sample_weight is not None:
            one = keras().ops.cast(math.any_weight(sample_weight), sample_weight.dtype)
            sample_weight = sample_weight * 0 + one
        return compute_metrics(x, y, y_pred, sample_weight)

    object.__setattr__(model, "compute_metrics", counting)


def _before_loss(model: Any, note: Callable[[Any, Any], None]) -> None:
    """Call ``note(length of the batch, sample weights)`` whenever a model computes its loss."""
    compute_loss = model.compute_loss
    signature = inspect.signature(compute_loss)

    @functools.wraps(compute_loss)
    def noting(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        if given.get("y_pred") is not None:
            note(gradient_math().length(next(leaves(given["y_pred"]))), given.get("sample_weight"))
        return compute_loss(*args, **kwargs)

    object.__setattr__(model, "compute_loss", noting)


def _track(model: Any, change: Callable[[Any], Any], count: Any) -> None:
    """Let the next batch's loss be shown as ``change(loss)``, counted ``count`` times."""
    tracker = loss_tracker(model)
    if tracker is None:
        return
    update = type(tracker).update_state

    def counted(values: Any, **_: Any) -> Any:
        return update(tracker, change(values), sample_weight=count)

    object.__setattr__(tracker, "update_state", counted)
