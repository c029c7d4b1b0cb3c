"""From a recipe's declarations to torch's objects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from hvdkit.errors import DataError, RecipeError
from hvdkit.recipe import optimizers
from hvdkit.recipe.declaration import Data
from hvdkit.torch.models import named_model
from hvdkit.torch.rates import can_be_fused, leading_rate, step_on_device

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def build_model(source: Any, seed: int, device: str, data: Data | None = None) -> torch.nn.Module:
    """Build a model on a device; torch is seeded first, alike on all ranks.

    Raises:
        RecipeError: The name is unknown, the data do not say what a named model needs, or the callable returns no
            module.
    """
    torch.manual_seed(seed)
    model = named_model(source, seed, data) if isinstance(source, str) else source()
    if not isinstance(model, torch.nn.Module):
        raise RecipeError(f"Recipe.model must build a torch.nn.Module, it gave {type(model).__name__}")
    model = model.to(device)
    return model.to(memory_format=torch.channels_last) if device != "cpu" else model


def build_optimizer(source: Any, model: torch.nn.Module) -> tuple[torch.optim.Optimizer, float]:
    """Build an optimizer; return it with the learning rate of one process.

    Raises:
        RecipeError: The source is neither an optimizer of hvdkit's nor a callable of the parameters.
    """
    parameters = list(model.parameters())
    # older torch knows the option, but not for all optimizers
    fused = {"fused": True} if can_be_fused(model) else {}
    optimizer = _own_optimizer(source, parameters, fused)
    if optimizer is None and callable(source):
        optimizer = source(parameters)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise RecipeError(
            "Recipe.optimizer must be one of hvdkit's, or for torch a callable: parameters -> torch optimizer"
        )
    step_on_device(optimizer, model)
    return optimizer, leading_rate(optimizer)


def _own_optimizer(
    source: Any, parameters: list[torch.nn.Parameter], fused: dict[str, bool]
) -> torch.optim.Optimizer | None:
    if isinstance(source, optimizers.SGD):
        return torch.optim.SGD(
            parameters,
            source.lr,
            source.momentum,
            nesterov=source.nesterov,
            weight_decay=source.weight_decay,
            **fused,
        )
    if isinstance(source, (optimizers.AdamW, optimizers.Adam)):
        kind = torch.optim.AdamW if isinstance(source, optimizers.AdamW) else torch.optim.Adam
        return kind(parameters, source.lr, source.betas, source.eps, source.weight_decay, **fused)
    if isinstance(source, optimizers.Adagrad):
        return torch.optim.Adagrad(
            parameters,
            source.lr,
            weight_decay=source.weight_decay,
            initial_accumulator_value=source.initial_accumulator,
            eps=source.eps,
        )
    return None


def build_loss(source: Any) -> Loss:
    """Return the mean loss of a batch as a function of outputs and targets."""
    if source == "sparse_categorical_crossentropy":
        return torch.nn.functional.cross_entropy
    if source == "mean_squared_error":
        return _mean_squared_error
    if isinstance(source, torch.nn.Module) and getattr(source, "reduction", "mean") != "mean":
        raise RecipeError(f"the loss has reduction={source.reduction!r}; hvdkit needs the mean of a batch")
    loss: Loss = source
    return loss


def _mean_squared_error(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean over all elements; targets (n,) fit outputs (n, 1), which torch would spread to (n, n)."""
    if outputs.numel() != targets.numel():
        raise DataError(f"the model gives {tuple(outputs.shape)} but the targets are {tuple(targets.shape)}")
    return torch.nn.functional.mse_loss(outputs, targets.reshape(outputs.shape).to(outputs.dtype))


def is_activated(model: torch.nn.Module) -> bool:
    """Say whether a model's last layer is a softmax or sigmoid."""
    *_, last = model.modules()
    return isinstance(last, (torch.nn.Softmax, torch.nn.Sigmoid))
