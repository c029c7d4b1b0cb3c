"""A small net, its data and one update, for the bodies of consistency tests; imported by torch ranks only."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from hvdkit.job.world import current


def rank() -> int:
    return current().rank


def net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).double()


def samples(count: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(3).normal(size=(count, 4)))


def update(model: nn.Module, optimizer: Any, x: torch.Tensor, weight: float = 1.0) -> float:
    """Do one update; return the loss."""
    optimizer.zero_grad()
    loss = ((model(x) - 1.0) ** 2).mean()
    (loss * weight).backward()
    optimizer.step()
    return loss.item()


def flat(model: nn.Module) -> np.ndarray:
    return np.concatenate([parameter.detach().numpy().ravel() for parameter in model.parameters()])


def distance(model: nn.Module, reference: nn.Module, start: np.ndarray) -> float:
    """Return how far two trained models are apart, in units of what training changed."""
    moved = np.linalg.norm(flat(reference) - start)
    assert moved > 0
    return float(np.linalg.norm(flat(model) - flat(reference)) / moved)
