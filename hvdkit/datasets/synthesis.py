"""Made-up images for tests and benchmarks: always the same, and learnable."""

from __future__ import annotations

import numpy as np

from hvdkit.errors import DataError
from hvdkit.recipe.declaration import Data


def synthetic(samples: int, shape: tuple[int, ...] = (28, 28, 1), classes: int = 10, seed: int = 0) -> Data:
    """Make images that are a pattern of their class plus as much noise, the same for the same arguments.

    Args:
        samples: How many to train on; a fifth as many, at least one, are the validation data.
        shape: Of one sample, images (height, width, channels).
        classes: How many classes; about equally frequent.
        seed: Another one gives other patterns, noise and order.

    Returns:
        Samples float32 of shape (samples, *shape), mean 0 and deviation about 1, and labels int64 in 0..classes-1.

    Raises:
        DataError: ``samples`` or a length in ``shape`` is below 1, or ``classes`` is below 2.
    """
    if samples < 1 or classes < 2 or any(length < 1 for length in shape):
        raise DataError(
            f"synthetic needs samples >= 1, classes >= 2 and lengths >= 1, but got samples={samples}, "
            f"classes={classes}, shape={shape}"
        )
    random = np.random.default_rng(seed)
    total = samples + max(1, samples // 5)
    y = random.permutation(np.arange(total, dtype=np.int64) % classes)
    patterns = random.standard_normal((classes, *shape), dtype=np.float32)
    x = random.standard_normal((total, *shape), dtype=np.float32)
    x += patterns[y]
    x *= np.float32(np.sqrt(0.5))
    return Data(train=(x[:samples], y[:samples]), validation=(x[samples:], y[samples:]), classes=classes)
