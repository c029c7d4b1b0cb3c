"""Sums over ranks in 16 bits."""

from __future__ import annotations

# name: largest finite number, distance from 1 to the next larger number
_TYPES = {"fp16": (65504.0, 2.0**-10), "bf16": ((2.0 - 2.0**-7) * 2.0**127, 2.0**-7)}


def largest_term(compression: str, size: int) -> float:
    """Return the largest absolute value of which ``size`` terms have a finite sum in 16 bits, however they are added.

    Args:
        compression: ``fp16`` or ``bf16``.
        size: The number of terms, one of each rank.
    """
    largest, spacing = _TYPES[compression]
    # each term may be rounded up once, and the sum once for every term that is added
    return largest / size / (1.0 + spacing * (1.0 + size / 2.0))
