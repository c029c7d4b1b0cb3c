"""What a model's first outputs, its labels and its losses must be, in every framework."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvdkit.errors import DataError, HvdkitError, ModelError
from hvdkit.job.world import World


def check_outputs(outputs: NDArray[Any], labels: Any, world: World, *, activated: bool = False) -> None:
    """Check a model's outputs for a few samples, and integer labels, against a cross-entropy; called by all ranks.

    Args:
        outputs: Shape ``(n, classes)``; others are not looked at.
        labels: Those of all ranks where they are at hand, else this rank's.
        world: The job.
        activated: Whether the model's last layer is a softmax or sigmoid.

    Raises:
        ModelError: The outputs are probabilities, where a named loss takes logits; on every rank.
        DataError: A label is out of range; on every rank.
    """
    problem = None
    try:
        _check_logits(outputs, activated)
        _check_labels(np.asarray(labels), outputs)
    except HvdkitError as error:
        problem = error
    for found in world.engine.allgather_object(problem):
        if found is not None:
            raise found


def _check_logits(outputs: NDArray[Any], activated: bool) -> None:
    rows = outputs.ndim == 2 and outputs.shape[1] > 1 and (outputs >= 0).all()
    if activated or (rows and (abs(outputs.sum(1) - 1) < 1e-4).all()):
        raise ModelError(
            "the model's outputs are probabilities, but this loss takes logits; "
            "remove the softmax or sigmoid at its end"
        )


def _check_labels(labels: NDArray[Any], outputs: NDArray[Any]) -> None:
    if outputs.ndim != 2 or labels.dtype.kind not in "iu" or not labels.size:
        return
    classes = outputs.shape[1]
    lowest, highest = int(labels.min()), int(labels.max())
    if lowest < 0 or highest >= classes:
        raise DataError(
            f"label {lowest if lowest < 0 else highest} is out of range; the model has {classes} outputs, which allow "
            f"labels 0 to {classes - 1}"
        )


def check_accuracy(outputs: Sequence[int | None], targets: Sequence[int | None], *, class_axis: int) -> None:
    """Check that ``accuracy`` has a score for each class and one integer label for each place that is scored.

    Args:
        outputs: The shape of the scores, ``(n, classes)`` or with more axes; None for a length that is not known.
        targets: The shape of the labels: that of the scores without the axis of the classes, or with one of length 1
            at the end.
        class_axis: Where the classes are in ``outputs``.

    Raises:
        ModelError: The shapes do not fit, as for a single output or one-hot labels.
    """
    places, labels = list(outputs), list(targets)
    classes = places.pop(class_axis) if len(places) > 1 else 1
    if classes != 1 and any(
        _fits(found, places) for found in (labels, labels[:-1] if labels[-1:] in ([1], [None]) else labels)
    ):
        return
    raise ModelError(
        f"metric 'accuracy' takes scores of shape (n, classes) and integer labels of shape (n,), but has outputs of "
        f"shape {tuple(outputs)} and targets of shape {tuple(targets)}; give a metric of your own"
    )


def _fits(found: list[int | None], expected: list[int | None]) -> bool:
    pairs = zip(found, expected, strict=False)
    return len(found) == len(expected) and all(None in pair or pair[0] == pair[1] for pair in pairs)


def check_loss(loss: float) -> None:
    """Check the mean training loss of an epoch or a step.

    Raises:
        ModelError: It is NaN.
    """
    if math.isnan(loss):
        raise ModelError("the training loss is NaN; lower the learning rate or check the data")
