"""Whether a loss that returns one number for a batch is a sum over its samples, tried on made-up samples."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from hvdkit.keras_common.gradients.arithmetic import gradient_math

_SAMPLES, _VARYING = 2, 3

_tried: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()


def sums_over_samples(loss: Any, compute: Callable[[Any, Any], Any], y_true: Any, y_pred: Any) -> bool:
    """Say whether a loss doubles when every sample is given twice.

    Args:
        loss: A Keras loss, tried once.
        compute: What it computes from targets and outputs.
        y_true: Targets as the loss gets them, of which shape and dtype count.
        y_pred: Outputs, likewise.
    """
    if str(getattr(y_pred, "device", "")) == "meta":
        return False  # Keras on torch asks for shapes first, where nothing can be tried
    if loss not in _tried:
        _tried[loss] = _doubles(compute, y_true, y_pred)
    return _tried[loss]


def _doubles(compute: Callable[[Any, Any], Any], y_true: Any, y_pred: Any) -> bool:
    targets, outputs = _made_up(y_true, whole=True), _made_up(y_pred, whole=False)
    try:
        with gradient_math().at_once():
            once = float(compute(*map(gradient_math().as_tensor, (targets, outputs))))
            twice = [np.concatenate([part, part]) for part in (targets, outputs)]
            double = float(compute(*map(gradient_math().as_tensor, twice)))
    except Exception:  # noqa: BLE001 - a loss may refuse what is made up, and then nothing is known
        return False
    return abs(once) > 1e-6 and math.isclose(double, 2 * once, rel_tol=1e-4)


def _made_up(tensor: Any, whole: bool) -> Any:
    shape = [_SAMPLES, *(_VARYING if length is None else int(length) for length in tensor.shape[1:])]
    size = math.prod(shape)
    values = np.zeros(size) if whole else np.linspace(0.15, 0.85, size)
    return values.reshape(shape).astype(str(getattr(tensor.dtype, "name", tensor.dtype)).removeprefix("torch."))
