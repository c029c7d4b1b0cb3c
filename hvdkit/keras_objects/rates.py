"""Step 4 for TensorFlow and Keras."""

from __future__ import annotations

from typing import Any

from hvdkit import world as worlds
from hvdkit.plan import scale_factor


def scale_lr(lr: float, rule: Any = "linear", accumulate: int = 1) -> float:
    """Step 4: scale the learning rate of one process by global batch / batch size.

    Args:
        lr: The learning rate of one process.
        rule: ``linear``, ``sqrt``, ``none``, or a callable that takes size * accumulate and returns the factor.
        accumulate: Micro-batches per update.

    Raises:
        RecipeError: The rule is unknown.
    """
    return lr * scale_factor(rule, worlds.current().size * accumulate)
