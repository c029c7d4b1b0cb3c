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


LOGITS, PROBABILITIES, CATEGORICAL = "logits", "probabilities", "categorical"
SPARSE, ONE_HOT, BINARY = "sparse", "one-hot", "binary"


def accuracy_form(
    outputs: Sequence[int | None], targets: Sequence[int | None], *, class_axis: int, loss: str | None = None
) -> str:
    """Choose what ``accuracy`` compares, by the shapes and the loss.

    Args:
        outputs: The shape of the scores; None for a length that is not known.
        targets: The shape of the labels.
        class_axis: Where the classes are in ``outputs``.
        loss: ``logits`` or ``probabilities`` for a binary cross-entropy on these, ``categorical`` for a cross-entropy
            over classes, or None.

    Returns:
        ``sparse`` for a score for each class and one integer label for each place; ``one-hot`` for a score for each
        class and labels of the same shape under a cross-entropy over classes; ``binary`` for one output and one label
        of 0 or 1 for each place under a binary cross-entropy.

    Raises:
        ModelError: It is none of these.
    """
    places, labels = list(outputs), list(targets)
    classes = places.pop(class_axis) if len(places) > 1 else 1
    shortened = labels[:-1] if labels[-1:] in ([1], [None]) else labels
    one_each = any(_fits(found, places) for found in (labels, shortened))
    if classes != 1 and one_each:
        return SPARSE
    if classes not in (1, None) and loss == CATEGORICAL and _fits(labels, list(outputs)):
        return ONE_HOT
    if classes == 1 and loss in (LOGITS, PROBABILITIES) and (one_each or _fits(labels, list(outputs))):
        return BINARY
    raise ModelError(
        f"metric 'accuracy' takes scores of shape (n, classes) and integer labels of shape (n,), one-hot labels under "
        f"a cross-entropy over classes, or one output under a binary cross-entropy, but has outputs of shape "
        f"{tuple(outputs)} and targets of shape {tuple(targets)}; give a metric of your own"
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
