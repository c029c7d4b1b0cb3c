"""``tf.data`` sets of single samples that are evaluated, not trained on."""

from __future__ import annotations

from typing import Any


def samples_in(data: Any) -> int | None:
    """Return how many samples a data set has; None if it does not know."""
    samples = int(data.cardinality().numpy())
    return samples if samples >= 0 else None
