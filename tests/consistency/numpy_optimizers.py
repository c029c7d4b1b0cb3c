"""Optimizers in float64 NumPy, one array at a time, from their papers and not from any framework.

torch and Keras put ``eps`` at different places, and each is held to its own: for Adam ``inside`` the bias correction
(torch) or ``outside`` of it (Keras, as at the end of section 2 of Kingma and Ba, 2015), for Adagrad beside the root or
under it. ``form`` is ``torch`` or ``keras``.
"""

from __future__ import annotations

import numpy as np
from numpy_models import Array

import hvdkit


class Sgd:
    """v = m v + g; w -= lr v; Nesterov (Sutskever et al., 2013) looks one step ahead."""

    def __init__(self, shape: tuple[int, ...], momentum: float, nesterov: bool) -> None:
        self.momentum, self.nesterov = momentum, nesterov
        self.velocity = np.zeros(shape)

    def update(self, weight: Array, gradient: Array, lr: float) -> Array:
        self.velocity = self.momentum * self.velocity + gradient
        return weight - lr * (gradient + self.momentum * self.velocity if self.nesterov else self.velocity)


class FoldedSgd:
    """The same with the learning rate folded into the velocity, v = m v - lr g, as Keras keeps it.

    When the rate changes, ``corrected`` multiplies the velocity by lr_t / lr_{t-1} (Goyal et al., 2017, remark 2).
    """

    def __init__(self, shape: tuple[int, ...], momentum: float, nesterov: bool, corrected: bool = True) -> None:
        self.momentum, self.nesterov, self.corrected = momentum, nesterov, corrected
        self.velocity, self.lr = np.zeros(shape), 0.0

    def update(self, weight: Array, gradient: Array, lr: float) -> Array:
        if self.corrected and self.lr:
            self.velocity = self.velocity * (lr / self.lr)
        self.lr = lr
        self.velocity = self.momentum * self.velocity - lr * gradient
        return weight + (self.momentum * self.velocity - lr * gradient if self.nesterov else self.velocity)


class Adam:
    """Kingma and Ba, 2015; ``decoupled`` decay as in Loshchilov and Hutter, 2019."""

    def __init__(self, shape: tuple[int, ...], source: hvdkit.Adam | hvdkit.AdamW, form: str) -> None:
        self.betas, self.eps, self.form = source.betas, source.eps, form
        self.decoupled = source.weight_decay if isinstance(source, hvdkit.AdamW) else 0.0
        self.first, self.second, self.step = np.zeros(shape), np.zeros(shape), 0

    def update(self, weight: Array, gradient: Array, lr: float) -> Array:
        one, two = self.betas
        self.step += 1
        self.first = one * self.first + (1 - one) * gradient
        self.second = two * self.second + (1 - two) * gradient**2
        weight = weight * (1 - lr * self.decoupled)
        first, root = self.first / (1 - one**self.step), np.sqrt(1 - two**self.step)
        if self.form == "torch":
            return weight - lr * first / (np.sqrt(self.second) / root + self.eps)
        return weight - lr * first * root / (np.sqrt(self.second) + self.eps)


class Adagrad:
    """Duchi et al., 2011."""

    def __init__(self, shape: tuple[int, ...], source: hvdkit.Adagrad, form: str) -> None:
        self.sum, self.eps, self.form = np.full(shape, source.initial_accumulator), source.eps, form

    def update(self, weight: Array, gradient: Array, lr: float) -> Array:
        self.sum = self.sum + gradient**2
        root = np.sqrt(self.sum) + self.eps if self.form == "torch" else np.sqrt(self.sum + self.eps)
        return weight - lr * gradient / root


Rule = Sgd | FoldedSgd | Adam | Adagrad


def rule_for(source: hvdkit.recipe.optimizers.Optimizer, shape: tuple[int, ...], form: str) -> Rule:
    """Return the update rule of one weight for a declared optimizer."""
    if isinstance(source, hvdkit.SGD):
        kind = Sgd if form == "torch" else FoldedSgd
        return kind(shape, source.momentum, source.nesterov)
    if isinstance(source, hvdkit.Adagrad):
        return Adagrad(shape, source, form)
    return Adam(shape, source, form)


def l2_decay(source: hvdkit.recipe.optimizers.Optimizer) -> float:
    """Return what is added to the gradient per weight; AdamW's decay is none of this kind."""
    return 0.0 if isinstance(source, hvdkit.AdamW) else source.weight_decay
