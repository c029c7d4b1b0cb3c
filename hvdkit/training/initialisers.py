"""What named models have in common in all frameworks: initial weights from seed and name, and the layout of arrays.

Arrays are named ``layer/part``, with ``_`` where torch's layers have a dot. Kernels lie as Keras stores them:
convolutions (height, width, in, out), dense layers (in, out); the other parts are bias, gamma, beta, moving_mean and
moving_variance, of shape (channels,).
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hvdkit.errors import ModelError, RecipeError
from hvdkit.job.arrays import Arrays

if TYPE_CHECKING:
    from hvdkit.recipe.declaration import Data

NAMES = ("mnist_cnn", "resnet34")
# below this, ResNet's 7 x 7 stem with stride 2 and pooling would leave too little of an image
_LARGE_IMAGE = 64
_ONES = ("gamma", "moving_variance")


def draw(shapes: Mapping[str, tuple[int, ...]], seed: int, rectified: bool = False) -> Arrays:
    """Draw weights for the given names and shapes, float32; each array depends on the seed and its own name only.

    Args:
        shapes: In the layout of this module.
        seed: At least 0.
        rectified: As residual nets with BatchNorm and ReLU are trained: convolutions are normal with deviation
            sqrt(2 / fan_out) (He et al., 2015), and the gamma that ends each block is zero, so that blocks begin as the
            identity (Goyal et al., 2017, section 5.1).

    Returns:
        Other kernels are uniform in +-sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio, 2010); gamma and
        moving_variance are one, the rest zero.
    """
    return {name: _one(name, shape, seed, rectified) for name, shape in shapes.items()}


def _one(name: str, shape: tuple[int, ...], seed: int, rectified: bool) -> NDArray[np.float32]:
    if len(shape) == 1:
        ends_block = rectified and name.endswith("_bn2/gamma")
        return np.full(shape, float(name.endswith(_ONES) and not ends_block), np.float32)
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, zlib.crc32(name.encode())])))
    receptive = math.prod(shape[:-2])
    if rectified and len(shape) == 4:
        deviation = np.float32(math.sqrt(2.0 / (receptive * shape[-1])))
        return generator.standard_normal(shape, np.float32) * deviation
    limit = math.sqrt(6.0 / (receptive * (shape[-2] + shape[-1])))
    value: NDArray[Any] = generator.uniform(-limit, limit, shape)
    return value.astype(np.float32)


def check_names(arrays: Iterable[str], model: Iterable[str]) -> None:
    """Check that arrays are those of a model.

    Raises:
        ModelError: An array is missing, or the model has no place for it.
    """
    given, known = set(arrays), set(model)
    if given != known:
        name = min(given ^ known)
        raise ModelError(f"array {name!r} is {'missing' if name in known else 'not in the model'}")


def image_task(name: str, data: Data | None) -> tuple[tuple[int, int, int], int]:
    """Return what a named model takes from the data: the shape of an image and the number of classes.

    Raises:
        RecipeError: The data do not say.
    """
    train = None if data is None else data.train
    shape = tuple(getattr(train[0], "shape", ()))[1:] if isinstance(train, tuple) else ()
    if len(shape) != 3 or data is None or data.classes is None:
        raise RecipeError(
            f"model {name!r} takes image size and classes from hvdkit.Data(train=(images NHWC, labels), classes=...); "
            f"for other data give Recipe.model a callable, such as lambda: models.{name}((224, 224, 3), 1000)"
        )
    return (int(shape[0]), int(shape[1]), int(shape[2])), data.classes


def has_small_stem(shape: tuple[int, int, int], small_stem: bool | None) -> bool:
    """Say whether ResNet starts with a 3 x 3 convolution of stride 1 and no pooling: if asked for, or by image size."""
    return min(shape[:2]) < _LARGE_IMAGE if small_stem is None else small_stem
