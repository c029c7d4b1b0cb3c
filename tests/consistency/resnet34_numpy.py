"""ResNet34 for evaluation in float64 NumPy, written from the paper's table and torchvision's padding."""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view


def logits(x, arrays, small_stem):
    """Map images, shape (n, height, width, channels), to logits; arrays in the layout of ``training.initialisers``."""
    net = {name: np.asarray(value, np.float64) for name, value in arrays.items()}
    x = np.maximum(normalise(convolve(np.asarray(x, np.float64), net, "conv1", 1 if small_stem else 2), net, "bn1"), 0)
    if not small_stem:
        x = windows(padded(x, 1, -np.inf), 3, 2).max(axis=(-2, -1))
    for stage, blocks in enumerate((3, 4, 6, 3), 1):
        for block in range(blocks):
            x = residual(x, net, f"layer{stage}_{block}", 2 if stage > 1 and block == 0 else 1)
    return x.mean(axis=(1, 2)) @ net["fc/kernel"] + net["fc/bias"]


def residual(x, net, name, stride):
    inner = np.maximum(normalise(convolve(x, net, f"{name}_conv1", stride), net, f"{name}_bn1"), 0)
    inner = normalise(convolve(inner, net, f"{name}_conv2", 1), net, f"{name}_bn2")
    if f"{name}_downsample_0/kernel" in net:
        x = normalise(convolve(x, net, f"{name}_downsample_0", stride), net, f"{name}_downsample_1")
    return np.maximum(x + inner, 0)


def convolve(x, net, name, stride):
    kernel = net[f"{name}/kernel"]
    return np.tensordot(windows(padded(x, len(kernel) // 2, 0), len(kernel), stride), kernel, ([4, 5, 3], [0, 1, 2]))


def normalise(x, net, name):
    mean, variance = net[f"{name}/moving_mean"], net[f"{name}/moving_variance"]
    return (x - mean) / np.sqrt(variance + 1e-5) * net[f"{name}/gamma"] + net[f"{name}/beta"]


def padded(x, width, value):
    return np.pad(x, ((0, 0), (width, width), (width, width), (0, 0)), constant_values=value)


def windows(x, side, stride):
    """Return views of shape (n, height, width, channels, side, side)."""
    return sliding_window_view(x, (side, side), axis=(1, 2))[:, ::stride, ::stride]
