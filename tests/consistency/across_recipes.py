"""Pairs of models as people write them down in two frameworks: alike, and with what each framework gives by default."""

from __future__ import annotations

from typing import Any

import numpy as np

import hvdkit

FEATURES, CLASSES, SIDE = 6, 3, 8


def vectors() -> hvdkit.Data:
    random = np.random.default_rng(7)
    x = random.normal(size=(32, FEATURES)).astype(np.float32)
    return hvdkit.Data((x[:21], random.integers(0, CLASSES, 21)), (x[21:], random.integers(0, CLASSES, 11)))


def images() -> hvdkit.Data:
    random = np.random.default_rng(7)
    return hvdkit.Data((random.normal(size=(16, SIDE, SIDE, 1)).astype(np.float32), random.integers(0, CLASSES, 16)))


def torch_net() -> Any:
    import torch

    net = torch.nn.Sequential(torch.nn.Linear(FEATURES, 8), torch.nn.Tanh(), torch.nn.Linear(8, CLASSES))
    for name, parameter in net.named_parameters():
        torch.nn.init.uniform_(parameter, -0.5, 0.5) if "weight" in name else torch.nn.init.zeros_(parameter)
    return net


def keras_net() -> Any:
    from hvdkit.keras_common.compat import keras

    layers, initializers = keras().layers, keras().initializers
    uniform = [initializers.RandomUniform(-0.5, 0.5, seed=seed) for seed in (1, 2)]
    inputs = keras().Input((FEATURES,))
    middle = layers.Dense(8, activation="tanh", kernel_initializer=uniform[0])(inputs)
    return keras().Model(inputs, layers.Dense(CLASSES, kernel_initializer=uniform[1])(middle))


alike = hvdkit.Recipe(
    model={"torch": torch_net, "tf": keras_net, "keras": keras_net},
    data=vectors,
    optimizer=hvdkit.SGD(lr=0.05, momentum=0.9),
    metrics=("accuracy",),
    batch_size=4,
)


def torch_image_net() -> Any:
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2, padding=1),
        nn.BatchNorm2d(4),
        nn.LeakyReLU(),
        nn.Conv2d(4, 4, 3, padding=1),
        nn.GELU("tanh"),
        nn.Flatten(),
        nn.LayerNorm(64),
        nn.Dropout(0.5),
        nn.Linear(64, CLASSES),
    )


def keras_image_net() -> Any:
    from hvdkit.keras_common.compat import keras

    layers = keras().layers
    return keras().Sequential(
        [
            keras().Input((SIDE, SIDE, 1)),
            layers.Conv2D(4, 3, strides=2, padding="same"),
            layers.BatchNormalization(),
            layers.LeakyReLU(),
            layers.Conv2D(4, 3, padding="same"),
            layers.Activation("gelu"),
            layers.Permute((3, 1, 2)),
            layers.Flatten(),
            layers.LayerNormalization(),
            layers.Dropout(0.2),
            layers.Dense(CLASSES),
        ]
    )


def keras_adamw() -> Any:
    from hvdkit.keras_common.compat import keras

    return keras().optimizers.AdamW()


def torch_adamw(parameters: Any) -> Any:
    import torch

    return torch.optim.AdamW(parameters)


defaults = hvdkit.Recipe(
    model={"torch": torch_image_net, "tf": keras_image_net, "keras": keras_image_net},
    data=images,
    optimizer={"torch": torch_adamw, "tf": keras_adamw, "keras": keras_adamw},
    batch_size=4,
)
