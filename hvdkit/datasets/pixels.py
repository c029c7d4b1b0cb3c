"""From bytes to the numbers that a network is trained on."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# mean and deviation of each channel, of pixels in 0..1
Scale = tuple[tuple[float, ...], tuple[float, ...]]


def to_float(images: NDArray[np.uint8], scale: Scale | None) -> NDArray[np.float32]:
    """Bring pixels from 0..255 to 0..1 and then, unless ``scale`` is None, to mean 0 and deviation 1.

    Args:
        images: Shape (..., channels).
        scale: Mean and deviation of each channel, or None.

    Returns:
        Float32 of the same shape, contiguous.
    """
    values = np.multiply(images, np.float32(1 / 255), dtype=np.float32, order="C")
    if scale is not None:
        mean, deviation = (np.asarray(numbers, np.float32) for numbers in scale)
        values -= mean
        values /= deviation
    return values
