"""Named models in torch; their weights come from ``training.initialisers``, whose layout of arrays they share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from hvdkit.errors import ModelError, RecipeError
from hvdkit.job.arrays import Arrays
from hvdkit.torch.batch_norm import plain_kind
from hvdkit.training.initialisers import NAMES, check_names, draw, has_small_stem, image_task

if TYPE_CHECKING:
    from hvdkit.recipe.declaration import Data

_DENSE = {"kernel": "weight", "bias": "bias"}
_NORM = {"gamma": "weight", "beta": "bias", "moving_mean": "running_mean", "moving_variance": "running_var"}
_PARTS: dict[Callable[..., nn.Module], dict[str, str]] = {
    nn.Conv1d: _DENSE,
    nn.Conv2d: _DENSE,
    nn.Linear: _DENSE,
    nn.BatchNorm1d: _NORM,
    nn.BatchNorm2d: _NORM,
    nn.LayerNorm: {"gamma": "weight", "beta": "bias"},
    nn.GroupNorm: {"gamma": "weight", "beta": "bias"},
    nn.Embedding: {"embeddings": "weight"},
}


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


def mnist_cnn(seed: int = 0) -> nn.Module:
    """Build a small CNN for 28 x 28 x 1 images and 10 classes, which returns logits."""
    model = MnistCnn()
    load_arrays(model, draw(_shapes(model), seed))
    return model


def resnet34(shape: tuple[int, int, int], classes: int, seed: int = 0, small_stem: bool | None = None) -> nn.Module:
    """Build torchvision's ResNet34, which returns logits.

    Args:
        shape: Of one neutral image, (height, width, channels); the model itself takes (n, channels, height, width).
        classes: The length of the logits.
        seed: Of the initial weights, the same in all frameworks.
        small_stem: Whether to start with a 3 x 3 convolution of stride 1 and no pooling, for images of some 30 pixels;
            None decides so below 64 pixels.

    Raises:
        RecipeError: torchvision is not installed.
    """
    try:
        from torchvision.models import resnet34 as build
    except ImportError:
        raise RecipeError("model 'resnet34' needs torchvision; install it with: pip install 'hvdkit[torch]'") from None
    model = build(num_classes=classes)
    if has_small_stem(shape, small_stem):
        model.conv1, model.maxpool = nn.Conv2d(shape[2], 64, 3, padding=1, bias=False), nn.Identity()
    elif shape[2] != 3:
        model.conv1 = nn.Conv2d(shape[2], 64, 7, stride=2, padding=3, bias=False)
    load_arrays(model, draw(_shapes(model), seed, rectified=True))
    return model


def named_model(name: str, seed: int, data: Data | None = None) -> nn.Module:
    """Build a model of hvdkit's own by name, with weights drawn from the seed, for images and classes of the data.

    Raises:
        RecipeError: There is no model of this name, or it needs to know more of the data.
    """
    if name not in NAMES:
        raise RecipeError(f"model {name!r} is unknown; use 'mnist_cnn', 'resnet34' or a callable that builds yours")
    return mnist_cnn(seed) if name == "mnist_cnn" else resnet34(*image_task(name, data), seed=seed)


def named_arrays(model: nn.Module) -> Arrays:
    """Return weights and statistics as named arrays in the layout of ``training.initialisers``, the same in Keras.

    Raises:
        ModelError: The model has parameters beside those of convolutions, dense layers, embeddings and normalisation.
    """
    return {
        name: np.array(_neutral_layout(name, tensor.detach().cpu().numpy()), order="C")
        for name, tensor in _tensors(model)
    }


def load_arrays(model: nn.Module, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Copy what :func:`named_arrays` gave, here or in Keras, into a model with the same layer names.

    Raises:
        ModelError: An array is missing, has another shape, or has no place in the model.
    """
    tensors = dict(_tensors(model))
    check_names(arrays, tensors)
    with torch.no_grad():
        for name, tensor in tensors.items():
            value = _torch_layout(name, np.asarray(arrays[name]))
            if value.shape != tuple(tensor.shape):
                raise ModelError(f"array {name!r} has shape {arrays[name].shape}, which does not fit the model")
            tensor.copy_(torch.from_numpy(np.ascontiguousarray(value)))


def _tensors(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for layer, module in model.named_modules():
        parts = _PARTS.get(plain_kind(module), {})
        for part, attribute in parts.items():
            if getattr(module, attribute) is not None:
                # Keras on torch allows no dot in a name
                yield f"{layer.replace('.', '_')}/{part}", getattr(module, attribute)
        if not parts and next(module.parameters(recurse=False), None) is not None:
            raise ModelError(f"{type(module).__name__} has parameters without a neutral layout")


def _shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: value.shape for name, value in named_arrays(model).items()}


def _neutral_layout(name: str, value: NDArray[Any]) -> NDArray[Any]:
    """Put the output last, before it the input, and first the window of a convolution."""
    return np.moveaxis(value, (1, 0), (-2, -1)) if name.endswith("/kernel") else value


def _torch_layout(name: str, value: NDArray[Any]) -> NDArray[Any]:
    return np.moveaxis(value, (-2, -1), (1, 0)) if name.endswith("/kernel") else value
