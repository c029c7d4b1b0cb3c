"""What torch's layers and optimizers were made with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hvdkit.tools.verification.arguments import Argument, Part, decay_of, read_arguments

_LAYERS = {
    "BatchNorm": {"epsilon": "eps", "momentum": "momentum"},
    "LayerNorm": {"epsilon": "eps"},
    "GroupNorm": {"epsilon": "eps", "groups": "num_groups"},
    "Dropout": {"rate": "p"},
    "LeakyReLU": {"slope": "negative_slope"},
    "ELU": {"alpha": "alpha"},
    "GELU": {"approximate": "approximate"},
    "Conv": {"stride": "stride", "dilation": "dilation", "groups": "groups"},
    "MaxPool": {"stride": "stride"},
    "AvgPool": {"stride": "stride"},
}
_OPTIMIZER = {
    "eps": "epsilon",
    "alpha": "rho",
    "rho": "rho",
    "momentum": "momentum",
    "nesterov": "nesterov",
    "amsgrad": "amsgrad",
    "centered": "centered",
    "initial_accumulator_value": "initial_accumulator_value",
}


def describe_layers(model: Any) -> Iterator[Part]:
    """Yield the layers whose arguments have a meaning in all frameworks."""
    padded: list[int] = []
    for name, module in model.named_modules():
        kind = type(module).__name__.removeprefix("Sync").removeprefix("Lazy").rstrip("123d")
        if kind == "ZeroPad":
            padded = list(module.padding)[::-1]
        if kind not in _LAYERS:
            continue
        arguments = read_arguments(module, _LAYERS[kind])
        if kind in ("Conv", "MaxPool", "AvgPool"):
            arguments = {key: _each(value, module) for key, value in arguments.items()}
            arguments |= _padding(module, padded)
            padded = []
        yield Part(kind, name, arguments)


def _each(argument: Argument, module: Any) -> Argument:
    """Return one number for each axis where torch takes one for all."""
    own, value, _ = argument
    axes = int(type(module).__name__[-2])
    return own, value, value if isinstance(value, list) or own == "groups" else [value] * axes


def _padding(module: Any, padded: list[int]) -> dict[str, Argument]:
    """Return the zeros before and after each axis, with those of a layer that only pads."""
    value = module.padding
    if isinstance(value, str):
        return {}
    axes = int(type(module).__name__[-2])
    each = [value] * axes if isinstance(value, int) else list(value)
    sides = [amount for amount in each for _ in range(2)]
    if padded:
        sides = [own + before for own, before in zip(sides, padded, strict=True)]
    return {"padding": ("padding", value if isinstance(value, int) else list(value), sides)}


def describe_optimizer(optimizer: Any) -> Part:
    """Return what an optimizer was made with, for its first group of parameters."""
    kind, group = type(optimizer).__name__, optimizer.param_groups[0]
    arguments = {shared: (own, group[own], group[own]) for own, shared in _OPTIMIZER.items() if own in group}
    for number, beta in enumerate(group.get("betas", ())):
        arguments[f"beta_{number + 1}"] = (f"betas[{number}]", beta, beta)
    decay = group.get("weight_decay", 0.0)
    arguments["weight_decay"] = ("weight_decay", decay, decay_of(decay, decoupled=kind == "AdamW"))
    return Part(kind, "", arguments)
