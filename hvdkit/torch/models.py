"""Named models in torch; their weights come from ``hvdkit.initialisers``."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from hvdkit.errors import RecipeError
from hvdkit.initialisers import MNIST_CNN, draw


class MnistCnn(nn.Module):
    """Two convolutions and two dense layers for 28 x 28 images; no dropout, no BatchNorm; returns logits."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.dense1 = nn.Linear(1600, 64)
        self.dense2 = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map images, float32 of shape (n, 1, 28, 28), to logits of shape (n, 10)."""
        x = torch.max_pool2d(torch.relu(self.conv1(x)), 2)
        x = torch.max_pool2d(torch.relu(self.conv2(x)), 2)
        # flattened as NHWC, the order of the other frameworks
        x = x.permute(0, 2, 3, 1).flatten(1)
        return self.dense2(torch.relu(self.dense1(x)))


def named_model(name: str, seed: int) -> nn.Module:
    """Build a model of hvdkit's own by name, with weights drawn from the seed.

    Raises:
        RecipeError: There is no model of this name.
    """
    if name != "mnist_cnn":
        raise RecipeError(f"model {name!r} is unknown; use 'mnist_cnn' or a callable that builds yours")
    model = MnistCnn()
    load_named(model, draw(MNIST_CNN, seed))
    return model


def load_named(model: nn.Module, arrays: dict[str, NDArray[np.float32]]) -> None:
    """Copy arrays in the layout of ``hvdkit.initialisers`` into a model with the same layer names."""
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, value in arrays.items():
            layer, part = name.split("/")
            target = parameters[f"{layer}.{'weight' if part == 'kernel' else part}"]
            target.copy_(torch.from_numpy(np.ascontiguousarray(_torch_layout(value))))


def _torch_layout(value: NDArray[np.float32]) -> NDArray[np.float32]:
    if value.ndim == 4:
        return value.transpose(3, 2, 0, 1)
    return value.T if value.ndim == 2 else value
