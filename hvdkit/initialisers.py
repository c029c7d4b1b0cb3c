"""Initial weights of named models, drawn in NumPy from seed and name, so that all frameworks start alike."""

from __future__ import annotations

import math
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

Shapes = dict[str, tuple[int, ...]]

# kernels are stored as Keras stores them: convolutions (height, width, in, out), dense layers (in, out)
MNIST_CNN: Shapes = {
    "conv1/kernel": (3, 3, 1, 32),
    "conv1/bias": (32,),
    "conv2/kernel": (3, 3, 32, 64),
    "conv2/bias": (64,),
    "dense1/kernel": (1600, 64),
    "dense1/bias": (64,),
    "dense2/kernel": (64, 10),
    "dense2/bias": (10,),
}


def draw(shapes: Shapes, seed: int) -> dict[str, NDArray[np.float32]]:
    """Draw weights for the given shapes, float32.

    Kernels are uniform in +-sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio, 2010), biases zero. Each array depends
    on the seed and its own name only.
    """
    return {name: _one(name, shape, seed) for name, shape in shapes.items()}


def _one(name: str, shape: tuple[int, ...], seed: int) -> NDArray[np.float32]:
    if len(shape) == 1:
        return np.zeros(shape, np.float32)
    receptive = math.prod(shape[:-2])
    limit = math.sqrt(6.0 / (receptive * (shape[-2] + shape[-1])))
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, zlib.crc32(name.encode())])))
    value: NDArray[Any] = generator.uniform(-limit, limit, shape)
    return value.astype(np.float32)
