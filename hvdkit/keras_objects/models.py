"""Named models, losses and checks of Keras models."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvdkit.errors import DataError, HvdkitError, ModelError, RecipeError
from hvdkit.initialisers import MNIST_CNN, draw
from hvdkit.keras_objects.versions import keras, keras_version
from hvdkit.world import World


def build_model(source: Any, seed: int) -> Any:
    """Build a Keras model from a callable or a name; Keras is seeded first, alike on all ranks.

    Raises:
        RecipeError: The name is unknown, or the callable returns no Keras model.
    """
    keras().utils.set_random_seed(seed)
    model = _named_model(source, seed) if isinstance(source, str) else source()
    if not isinstance(model, keras().Model):
        raise RecipeError(
            f"Recipe.model must build a model of Keras {keras_version()}, it gave {type(model).__module__}."
            f"{type(model).__name__}"
        )
    return model


def _named_model(name: str, seed: int) -> Any:
    if name != "mnist_cnn":
        raise RecipeError(f"model {name!r} is unknown; use 'mnist_cnn' or a callable that builds yours")
    model = _mnist_cnn()
    load_named(model, draw(MNIST_CNN, seed))
    return model


def _mnist_cnn() -> Any:
    """Two convolutions and two dense layers for 28 x 28 images; no dropout, no BatchNorm; returns logits."""
    layers = keras().layers
    inputs = keras().Input((28, 28, 1))
    x = layers.Conv2D(32, 3, activation="relu", name="conv1")(inputs)
    x = layers.MaxPooling2D()(x)
    x = layers.Conv2D(64, 3, activation="relu", name="conv2")(x)
    x = layers.MaxPooling2D()(x)
    x = layers.Flatten()(x)
    x = layers.Dense(64, activation="relu", name="dense1")(x)
    return keras().Model(inputs, layers.Dense(10, name="dense2")(x))


def load_named(model: Any, arrays: dict[str, NDArray[np.float32]]) -> None:
    """Assign arrays in the layout of ``hvdkit.initialisers`` to a model with the same layer names."""
    for name, value in arrays.items():
        layer, part = name.split("/")
        getattr(model.get_layer(layer), part).assign(value)


def build_loss(source: Any) -> Any:
    """Return a Keras loss object for a name (on logits); anything else is taken as it is."""
    if source == "sparse_categorical_crossentropy":
        return keras().losses.SparseCategoricalCrossentropy(from_logits=True)
    if source == "mean_squared_error":
        return keras().losses.MeanSquaredError()
    return source


def check_outputs(outputs: NDArray[Any], y: Any, world: World) -> None:
    """Check a model's outputs for a few samples, and labels, against a named loss; called by all ranks.

    Raises:
        ModelError: The outputs are probabilities, where a named loss takes logits; on every rank.
        DataError: A label is out of range; on every rank.
    """
    problem = None
    try:
        _check_outputs(outputs, y)
    except HvdkitError as error:
        problem = error
    for found in world.engine.allgather_object(problem):
        if found is not None:
            raise found


def _check_outputs(outputs: NDArray[Any], y: Any) -> None:
    if outputs.ndim != 2 or outputs.shape[1] < 2:
        return
    if (outputs >= 0).all() and (abs(outputs.sum(1) - 1) < 1e-4).all():
        raise ModelError(
            "the model's outputs are probabilities, but a named loss takes logits; remove the softmax at its end"
        )
    check_labels(y, outputs.shape[1])


def check_labels(y: Any, classes: int) -> None:
    """Check integer labels against the number of a model's outputs.

    Raises:
        DataError: A label is out of range.
    """
    labels = np.asarray(y)
    if labels.dtype.kind not in "iu" or not labels.size:
        return
    lowest, highest = int(labels.min()), int(labels.max())
    if lowest < 0 or highest >= classes:
        raise DataError(
            f"label {lowest if lowest < 0 else highest} is out of range; the model has {classes} outputs, which "
            f"allow labels 0 to {classes - 1}"
        )
