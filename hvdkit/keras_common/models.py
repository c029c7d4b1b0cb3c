"""Named models, losses and checks of Keras models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hvdkit.errors import ModelError, RecipeError
from hvdkit.job.arrays import Arrays
from hvdkit.keras_common.compat import keras, keras_version, to_numpy
from hvdkit.training.initialisers import NAMES, check_names, draw, has_small_stem, image_task

if TYPE_CHECKING:
    from hvdkit.recipe.declaration import Data

# blocks of two convolutions in each stage; the stages have 64, 128, 256 and 512 channels
_RESNET34_BLOCKS = (3, 4, 6, 3)
_PARTS = ("kernel", "bias", "embeddings", "gamma", "beta", "moving_mean", "moving_variance")


def build_model(source: Any, seed: int, data: Data | None = None) -> Any:
    """Build a Keras model from a callable or a name; Keras is seeded first, alike on all ranks.

    Raises:
        RecipeError: The name is unknown, the data do not say what a named model needs, or the callable returns no Keras
            model.
    """
    keras().utils.set_random_seed(seed)
    model = _named_model(source, seed, data) if isinstance(source, str) else source()
    if not isinstance(model, keras().Model):
        raise RecipeError(
            f"Recipe.model must build a model of Keras {keras_version()}, it gave {type(model).__module__}."
            f"{type(model).__name__}"
        )
    return model


def _named_model(name: str, seed: int, data: Data | None) -> Any:
    if name not in NAMES:
        raise RecipeError(f"model {name!r} is unknown; use 'mnist_cnn', 'resnet34' or a callable that builds yours")
    return mnist_cnn(seed) if name == "mnist_cnn" else resnet34(*image_task(name, data), seed=seed)


def mnist_cnn(seed: int = 0) -> Any:
    """Build two convolutions and two dense layers for 28 x 28 x 1 images; no dropout, no BatchNorm; returns logits."""
    layers = keras().layers
    inputs = keras().Input((28, 28, 1))
    x = layers.Conv2D(32, 3, activation="relu", name="conv1")(inputs)
    x = layers.MaxPooling2D()(x)
    x = layers.Conv2D(64, 3, activation="relu", name="conv2")(x)
    x = layers.MaxPooling2D()(x)
    x = layers.Flatten()(x)
    x = layers.Dense(64, activation="relu", name="dense1")(x)
    model = keras().Model(inputs, layers.Dense(10, name="dense2")(x))
    load_arrays(model, draw(_shapes(model), seed))
    return model


def resnet34(shape: tuple[int, int, int], classes: int, seed: int = 0, small_stem: bool | None = None) -> Any:
    """Build ResNet34 as torchvision has it, layer by layer, under the same names; it returns logits.

    BatchNorm's momentum 0.9 is torch's 0.1. Its running variance is torch's in Keras 2; Keras 3 takes the variance of
    the batch without the factor n / (n - 1) for n values per channel, which only evaluation sees.

    Args:
        shape: Of one image, (height, width, channels).
        classes: The length of the logits.
        seed: Of the initial weights, the same in all frameworks.
        small_stem: Whether to start with a 3 x 3 convolution of stride 1 and no pooling, for images of some 30 pixels;
            None decides so below 64 pixels.
    """
    layers = keras().layers
    small = has_small_stem(shape, small_stem)
    inputs = keras().Input(shape)
    x = _convolution(inputs, 64, 3 if small else 7, 1 if small else 2, "conv1")
    x = layers.ReLU()(_normalised(x, "bn1"))
    if not small:
        # zeros serve as padding of a maximum, since ReLU leaves nothing below them
        x = layers.MaxPooling2D(3, 2)(layers.ZeroPadding2D(1)(x))
    for stage, blocks in enumerate(_RESNET34_BLOCKS):
        for block in range(blocks):
            x = _block(x, 64 * 2**stage, 2 if stage and not block else 1, f"layer{stage + 1}_{block}")
    model = keras().Model(inputs, layers.Dense(classes, name="fc")(layers.GlobalAveragePooling2D()(x)))
    load_arrays(model, draw(_shapes(model), seed, rectified=True))
    return model


def _block(inputs: Any, filters: int, stride: int, name: str) -> Any:
    layers = keras().layers
    x = _normalised(_convolution(inputs, filters, 3, stride, f"{name}_conv1"), f"{name}_bn1")
    x = _normalised(_convolution(layers.ReLU()(x), filters, 3, 1, f"{name}_conv2"), f"{name}_bn2")
    if stride > 1:
        inputs = _convolution(inputs, filters, 1, stride, f"{name}_downsample_0")
        inputs = _normalised(inputs, f"{name}_downsample_1")
    return layers.ReLU()(layers.Add()([x, inputs]))


def _convolution(x: Any, filters: int, size: int, stride: int, name: str) -> Any:
    layers = keras().layers
    if stride == 1:
        return layers.Conv2D(filters, size, padding="same", use_bias=False, name=name)(x)
    if size > 1:
        # the same on both sides, as torch pads; "same" with a stride would pad one side more
        x = layers.ZeroPadding2D(size // 2)(x)
    return layers.Conv2D(filters, size, stride, use_bias=False, name=name)(x)


def _normalised(x: Any, name: str) -> Any:
    return keras().layers.BatchNormalization(momentum=0.9, epsilon=1e-5, name=name)(x)


def named_arrays(model: Any) -> Arrays:
    """Return weights and statistics as named arrays in the layout of ``training.initialisers``, the same in torch.

    Raises:
        ModelError: The model has weights beside those of convolutions, dense layers, embeddings and normalisation.
    """
    return {name: np.array(to_numpy(variable)) for name, variable in _variables(model)}


def load_arrays(model: Any, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Assign what :func:`named_arrays` gave, here or in torch, to a model with the same layer names.

    Raises:
        ModelError: An array is missing, has another shape, or has no place in the model.
    """
    variables = dict(_variables(model))
    check_names(arrays, variables)
    for name, variable in variables.items():
        if tuple(variable.shape) != arrays[name].shape:
            raise ModelError(f"array {name!r} has shape {arrays[name].shape}, which does not fit the model")
        variable.assign(np.asarray(arrays[name], to_numpy(variable).dtype))


def _variables(model: Any) -> Iterator[tuple[str, Any]]:
    for layer in model.layers:
        parts = [part for part in _PARTS if layer.weights and getattr(layer, part, None) is not None]
        if len(parts) != len(layer.weights):
            raise ModelError(f"layer {layer.name!r} has weights without a neutral layout")
        for part in parts:
            yield f"{layer.name}/{part}", getattr(layer, part)


def _shapes(model: Any) -> dict[str, tuple[int, ...]]:
    return {name: tuple(variable.shape) for name, variable in _variables(model)}


def build_loss(source: Any) -> Any:
    """Return a Keras loss object for a name (on logits); anything else is taken as it is.

    Raises:
        RecipeError: The loss is a sum over the batch, of which no mean over ranks is that of one process.
    """
    if source == "sparse_categorical_crossentropy":
        return keras().losses.SparseCategoricalCrossentropy(from_logits=True)
    if source == "mean_squared_error":
        return keras().losses.MeanSquaredError()
    if getattr(source, "reduction", None) == "sum":
        raise RecipeError("the loss has reduction='sum'; hvdkit needs the mean of a batch")
    return source
