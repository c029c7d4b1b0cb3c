"""Which way a metric goes when it gets better."""

from __future__ import annotations

from typing import Any

from hvdkit.errors import RecipeError
from hvdkit.recipe.checks import is_number

FALLING, RISING = "falling", "rising"
_FALLING = ("loss", "error", "mae", "mse", "rmse", "mape", "perplexity", "divergence", "crossentropy", "entropy", "nll")
_RISING = ("accuracy", "acc", "auc", "precision", "recall", "f1", "score", "iou", "dice", "psnr", "ssim", "bleu", "r2")


def is_target(target: Any) -> bool:
    """Say whether this is a number, or a pair of ``falling`` or ``rising`` and a number."""
    if isinstance(target, tuple):
        return len(target) == 2 and target[0] in (FALLING, RISING) and is_number(target[1])
    return is_number(target)


def parse_target(metric: str, target: float | tuple[str, float]) -> tuple[str, float]:
    """Return the direction and the value of a target in ``Recipe.stop_at``.

    Args:
        metric: Its name, of which the last word tells the direction where the target does not.
        target: See :func:`is_target`.

    Raises:
        RecipeError: The name does not tell the direction.
    """
    if isinstance(target, tuple):
        return target
    found = direction_of(metric)
    if found is not None:
        return found[0], float(target)
    raise RecipeError(
        f"Recipe.stop_at names {metric!r}, of which hvdkit does not know whether it falls or rises as it gets better; "
        f'write {{{metric!r}: ("falling", {target:g})}} or ("rising", {target:g})'
    )


def direction_of(metric: Any) -> tuple[str, str] | None:
    """Return the direction in which a metric gets better, and its name; None where it is not known.

    Args:
        metric: Its name, or a pair of ``falling`` or ``rising`` and its name.
    """
    if isinstance(metric, tuple):
        return metric if len(metric) == 2 and metric[0] in (FALLING, RISING) and isinstance(metric[1], str) else None
    if not isinstance(metric, str):
        return None
    words = metric.lower().replace("-", "_").split("_")
    for direction, known in ((FALLING, _FALLING), (RISING, _RISING)):
        if any(words[-1].endswith(word) if len(word) > 3 else words[-1] == word for word in known):
            return direction, metric
    return None
