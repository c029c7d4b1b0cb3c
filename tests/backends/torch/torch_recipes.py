"""Recipes of torch tests and what is known of their runs; imported by ranks only."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch_cases import mlp, samples

import hvdkit


def recipe(**changes: Any) -> hvdkit.Recipe:
    x, y = samples(64, torch.float32)
    values = {
        "model": {"torch": lambda: mlp(torch.float32, torch.initial_seed())},
        "data": hvdkit.Data(train=(x[:48], y[:48]), validation=(x[48:], y[48:])),
        "optimizer": hvdkit.Adam(lr=0.01),
        "metrics": ("accuracy",),
        "batch_size": 4,
        "epochs": 3,
        "seed": 7,
    }
    return hvdkit.Recipe(**{**values, **changes})


def run(**changes: Any) -> hvdkit.training.trainer.Trainer:
    trainer = hvdkit.apply(recipe(**changes), framework="torch")
    trainer.fit()
    return trainer


def curve(trainer: Any) -> list[dict[str, float]]:
    """Return the history without what depends on the clock."""
    apart = ("seconds", "samples_per_second")
    return [{name: value for name, value in record.items() if name not in apart} for record in trainer.history.epochs]


def weights(trainer: Any) -> Any:
    return np.concatenate([value.ravel() for value in trainer.weights().values()])
