"""What the examples of this folder share: a recipe in which nothing is wrong."""

from __future__ import annotations

from typing import Any

import numpy as np

import hvdkit

RATE = 0.05

random = np.random.default_rng(7)
SAMPLES = random.normal(size=(48, 6)).astype(np.float32), random.integers(0, 3, 48)


def torch_net() -> Any:
    """Return two layers."""
    import torch

    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))


def keras_net() -> Any:
    """Return two layers."""
    import keras

    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(3)])


small_recipe = hvdkit.Recipe(
    model={"torch": torch_net, "tf": keras_net, "keras": keras_net},
    data=hvdkit.Data(SAMPLES),
    optimizer=hvdkit.SGD(lr=RATE, momentum=0.9),
    metrics=("accuracy",),
    batch_size=4,
)
