"""From a recipe's declarations to Keras objects."""

from __future__ import annotations

from typing import Any

from hvdkit.job import random_streams
from hvdkit.keras_common import models, optimizers
from hvdkit.recipe.declaration import Data


def seed_all(seed: int) -> None:
    """Start the generators of Python and NumPy alike on all ranks; the model has seeds of its own."""
    random_streams.seed_python_and_numpy(seed)


def build_model(source: Any, seed: int, device: str, data: Data | None = None) -> Any:
    """Build a model; it lies on the device that step 2 has shown to Keras.

    Raises:
        RecipeError: The name is unknown, the data do not say what a named model needs, or the callable returns no Keras
            model.
    """
    del device
    return models.build_model(source, seed, data)


def build_optimizer(source: Any, model: Any) -> tuple[Any, float]:
    """Build an optimizer; return it with the learning rate of one process.

    Raises:
        RecipeError: The source is neither an optimizer of hvdkit's nor a callable that returns a Keras one.
    """
    del model
    return optimizers.build_optimizer(source)
