"""What Keras's losses divide by: the number of entries that their mean stands for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from hvdkit.errors import ModelError
from hvdkit.keras_common.compat import keras, mask_of
from hvdkit.keras_common.gradients.arithmetic import gradient_math
from hvdkit.keras_common.gradients.sum_probe import sums_over_samples
from hvdkit.recipe.trees import leaves

_SUMS = (None, "none", "sum")


@dataclass(frozen=True)
class Mean:
    """A loss that Keras has computed.

    Attributes:
        name: Of the loss.
        divisor: What its sum was divided by; None for a function that returns one number for a batch.
        per_sample: The entries of one sample where these are what counts; None if they vary, or are masked or weighted.
    """

    name: str
    divisor: Any
    per_sample: int | None


@contextmanager
def watching() -> Iterator[list[Mean]]:
    """Note the losses that Keras computes meanwhile, but for those that others compute inside.

    Raises:
        ModelError: A loss returns one number for a batch that has a mask, or that is a sum.
    """
    kind, found = keras().losses.Loss, []
    call = kind.__call__

    def noting(loss: Any, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        kind.__call__ = call
        try:
            with _seeing_entries(loss) as entries:
                result = call(loss, y_true, y_pred, sample_weight)
        finally:
            kind.__call__ = noting
        if entries:
            if gradient_math().is_number(entries[-1]) and sums_over_samples(loss, loss.call, y_true, y_pred):
                raise ModelError(_refusal(loss, "returns the sum of a batch"))
            found.append(_mean(loss, entries[-1], mask_of(y_pred), sample_weight))
        return result

    kind.__call__ = noting
    try:
        yield found
    finally:
        kind.__call__ = call


@contextmanager
def _seeing_entries(loss: Any) -> Iterator[list[Any]]:
    """Note what a loss computes for each entry, before Keras reduces it."""
    compute: Callable[..., Any] = loss.call
    own, entries = vars(loss).get("call"), []

    def seen(*args: Any, **kwargs: Any) -> Any:
        values = compute(*args, **kwargs)
        entries.append(values)
        return values

    object.__setattr__(loss, "call", seen)
    try:
        yield entries
    finally:
        object.__delattr__(loss, "call")
        if own is not None:
            object.__setattr__(loss, "call", own)


def _mean(loss: Any, entries: Any, mask: Any, weights: Any) -> Mean:
    math, name = gradient_math(), _name(loss)
    own = mask_of(entries)
    mask = own if mask is None else mask if own is None else mask & own
    if math.is_number(entries):
        if mask is not None:
            raise ModelError(
                f"the loss {name!r} returns one number for a batch with a mask, so that nobody knows how many entries "
                "it stands for; return one number for each entry, of which Keras takes the mean"
            )
        return Mean(name, None, 1)
    if loss.reduction in _SUMS:
        return Mean(name, math.size(entries), math.per_sample(entries))
    if loss.reduction == "mean_with_sample_weight" and not (mask is None and weights is None):
        return Mean(name, math.sum_of(_product(weights, mask)), None)
    if mask is not None:
        return Mean(name, math.size(entries) * math.sum_of(mask) / math.size(mask), None)
    return Mean(name, math.size(entries), math.per_sample(entries))


def _product(weights: Any, mask: Any) -> Any:
    """Return weights times mask, as Keras brings them to one shape."""
    if weights is None or mask is None:
        return mask if weights is None else weights
    weights, mask = gradient_math().scalar(weights), gradient_math().scalar(mask)
    extra = len(weights.shape) - len(mask.shape)
    if extra == 1 and weights.shape[-1] == 1:
        weights = weights[..., 0]
    elif extra == -1 and mask.shape[-1] == 1:
        mask = mask[..., 0]
    return weights * mask


def _name(loss: Any) -> str:
    return str(getattr(loss, "name", None) or type(loss).__name__)


def check_compiled_losses(model: Any) -> None:
    """Refuse a compiled model whose losses are not means.

    Raises:
        ModelError: One is a sum over the batch, or one number for each entry, which Keras sums for the gradients.
    """
    for loss in leaves(getattr(model, "loss", None)):
        if isinstance(loss, keras().losses.Loss) and loss.reduction in _SUMS:
            raise ModelError(_refusal(loss, f"has reduction={loss.reduction!r} and so sums over the batch"))


def _refusal(loss: Any, what: str) -> str:
    return (
        f"the loss {_name(loss)!r} {what}, but hvdkit takes the mean over ranks; use reduction='sum_over_batch_size', "
        "or return the mean, and take the learning rate times the global batch"
    )


def divisor(found: list[Mean], length: Any) -> Any:
    """Return what the mean of a batch stands for.

    Args:
        found: The losses of the batch, one for each output.
        length: The samples of the batch.

    Returns:
        The divisor of the loss, a number or a tensor; with several of fixed size, the samples.

    Raises:
        ModelError: There are several, and one divides by a number that the batch's length does not tell.
    """
    if len(found) > 1:
        for mean in found:
            if mean.per_sample is None:
                raise ModelError(
                    f"the loss {mean.name!r}, one of {len(found)}, divides by the sum of a mask or of weights, or by a "
                    "varying length, so that ranks would count otherwise for each of them; train with one loss, or "
                    "leave masks out"
                )
    if len(found) != 1 or found[0].divisor is None:
        return length
    return found[0].divisor


def refuse_varying(found: list[Mean], where: str) -> None:
    """Refuse losses whose divisor the batch's length does not tell.

    Raises:
        ModelError: There is one.
    """
    for mean in found:
        if mean.per_sample is None:
            raise ModelError(
                f"the loss {mean.name!r} divides by the sum of a mask or of weights, or by a varying length, by which "
                f"{where} cannot weight ranks; use hvdkit.keras without accumulation, or leave masks out"
            )
