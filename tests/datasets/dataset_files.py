"""Contents of small files in the formats of the real sets."""

from __future__ import annotations

import struct

import numpy as np


def idx_bytes(values: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape) + values.tobytes()


def digits(samples: int, side: int = 28, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    images = random.integers(0, 256, (samples, side, side), dtype=np.uint8)
    return images, (np.arange(samples) % 10).astype(np.uint8)
