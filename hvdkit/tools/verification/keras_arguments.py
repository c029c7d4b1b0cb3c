"""What Keras's layers and optimizers were made with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hvdkit.tools.verification.arguments import Argument, Part, decay_of, read_arguments

_LAYERS = {
    "BatchNormalization": ("BatchNorm", {"epsilon": "epsilon", "momentum": "momentum"}),
    "LayerNormalization": ("LayerNorm", {"epsilon": "epsilon"}),
    "GroupNormalization": ("GroupNorm", {"epsilon": "epsilon", "groups": "groups"}),
    "Dropout": ("Dropout", {"rate": "rate"}),
    "LeakyReLU": ("LeakyReLU", {"slope": "negative_slope"}),
    "ELU": ("ELU", {"alpha": "alpha"}),
}
_WINDOWS = {"Conv": "Conv", "MaxPooling": "MaxPool", "AveragePooling": "AvgPool"}
_OPTIMIZER = (
    "beta_1",
    "beta_2",
    "epsilon",
    "rho",
    "momentum",
    "nesterov",
    "amsgrad",
    "centered",
    "initial_accumulator_value",
)


def describe_layers(model: Any) -> Iterator[Part]:
    """Yield the layers whose arguments have a meaning in all frameworks."""
    padded: list[int] = []
    for layer in model._flatten_layers():
        name = type(layer).__name__
        if name.startswith("ZeroPadding"):
            padded = [amount for side in _pairs(layer.padding) for amount in side]
        elif name in _LAYERS:
            yield _layer(layer, *_LAYERS[name])
        elif name.rstrip("123D") in _WINDOWS:
            yield Part(_WINDOWS[name.rstrip("123D")], layer.name, _window(layer, padded))
            padded = []
        if getattr(getattr(layer, "activation", None), "__name__", "") == "gelu":
            yield Part("GELU", layer.name, {"approximate": ("approximate", False, "none")})


def _layer(layer: Any, kind: str, names: dict[str, str]) -> Part:
    arguments = read_arguments(layer, names)
    if kind == "BatchNorm":
        # torch's is the weight of the new value, Keras's that of the old one
        own, value, _ = arguments["momentum"]
        arguments["momentum"] = (own, value, 1.0 - value)
    if kind == "LeakyReLU" and not arguments:
        arguments = read_arguments(layer, {"slope": "alpha"})
    return Part(kind, layer.name, arguments)


def _window(layer: Any, padded: list[int]) -> dict[str, Argument]:
    arguments = read_arguments(layer, {"stride": "strides", "dilation": "dilation_rate", "groups": "groups"})
    sides = _zeros(layer)
    if sides is not None:
        if padded:
            sides = [own + before for own, before in zip(sides, padded, strict=True)]
        arguments["padding"] = ("padding", layer.padding, sides)
    return arguments


def _zeros(layer: Any) -> list[int] | None:
    """Return the zeros before and after each axis; None where the size of the input, which decides, is not known."""
    kernel = getattr(layer, "kernel_size", None) or layer.pool_size
    if layer.padding == "valid":
        return [0] * (2 * len(kernel))
    try:
        shape = [axis for axis in layer.input.shape[1:] if axis is not None]
    except (AttributeError, ValueError):
        return None
    spatial = shape[: len(kernel)] if layer.data_format == "channels_last" else shape[-len(kernel) :]
    if len(spatial) < len(kernel):
        return None
    dilation = getattr(layer, "dilation_rate", (1,) * len(kernel))
    sides = []
    for size, width, stride, spread in zip(spatial, kernel, layer.strides, dilation, strict=True):
        reach = (width - 1) * spread + 1
        total = max((-(-size // stride) - 1) * stride + reach - size, 0)
        sides += [total // 2, total - total // 2]
    return sides


def _pairs(padding: Any) -> list[tuple[int, int]]:
    return [(side, side) if isinstance(side, int) else (side[0], side[1]) for side in padding]


def describe_optimizer(optimizer: Any) -> Part:
    """Return what an optimizer was made with."""
    config = {name: value for name, value in optimizer.get_config().items() if not isinstance(value, dict)}
    arguments = read_arguments(config, {name: name for name in _OPTIMIZER})
    decay = config.get("weight_decay") or 0.0
    arguments["weight_decay"] = ("weight_decay", decay, decay_of(decay, decoupled=True))
    return Part(type(optimizer).__name__, "", arguments)
