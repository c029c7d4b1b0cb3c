"""The recipes that every framework, engine and number of processes is held to.

Momentum, betas, eps, decay and accumulator are numbers that float32 holds exactly: TensorFlow rounds a Python number to
float32 before it becomes float64, and with 0.9 that alone would leave the band of float64.
"""

from __future__ import annotations

from numpy_reference import Case

import hvdkit

BETAS, EPS, DECAY = (0.875, 1 - 2.0**-10), 2.0**-7, 2.0**-4


def sgd(lr: float, **options: float) -> hvdkit.SGD:
    return hvdkit.SGD(lr, momentum=0.875, **options)


def adam(lr: float, **options: float) -> hvdkit.Adam:
    return hvdkit.Adam(lr, betas=BETAS, **options)


def adagrad(lr: float, **options: float) -> hvdkit.Adagrad:
    return hvdkit.Adagrad(lr, initial_accumulator=0.125, **options)


CASES = {
    "softmax_sgd": Case("softmax", hvdkit.SGD(0.1)),
    "softmax_sgd_l2_sqrt": Case("softmax", hvdkit.SGD(0.1, weight_decay=DECAY), scaling="sqrt"),
    "momentum_warmup": Case("mlp", sgd(0.05), warmup=2.5),
    "momentum_l2_clip": Case("mlp", sgd(0.05, weight_decay=DECAY), clip=0.25),
    "nesterov_sqrt_warmup": Case("mlp", sgd(0.05, nesterov=True), scaling="sqrt", warmup=1.0),
    "adam": Case("mlp", adam(0.01)),
    "adam_l2_pad": Case("mlp", adam(0.01, weight_decay=DECAY), uneven="pad"),
    "adam_large_eps": Case("mlp", adam(0.02, eps=EPS)),
    "adamw_drop": Case("mlp", hvdkit.AdamW(0.01, BETAS, weight_decay=2 * DECAY), uneven="drop"),
    "adagrad_clip": Case("mlp", adagrad(0.1, eps=EPS), clip=0.25),
    "embedding_sgd": Case("embedding", hvdkit.SGD(0.1), sparse=True),
    "embedding_adam_l2": Case("embedding", adam(0.01, weight_decay=DECAY)),
    "embedding_adagrad": Case("embedding", adagrad(0.1), sparse=True),
    "accumulated_momentum": Case("mlp", sgd(0.03), accumulate=2, warmup=1.0),
    "accumulated_adam_clip": Case("mlp", adam(0.01), accumulate=3, clip=0.25, warmup=1.0, samples=53),
}
