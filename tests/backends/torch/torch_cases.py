"""Models, data and loops that the bodies of torch tests share; imported by ranks only."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from complaints import complaint as complaint
from torch import nn
from torch.nn.functional import cross_entropy

import hvdkit.torch as hk
from hvdkit.job.arrays import on_host, sha256
from hvdkit.job.world import current
from hvdkit.recipe.plan import ShardPlan
from hvdkit.torch.tensors import numpy_arrays


def rank() -> int:
    return current().rank


def mlp(dtype: torch.dtype = torch.float64, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 4)).to(dtype)


class WithUnused(nn.Module):
    """A layer that nobody calls stands between two that are used."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.unused, self.last = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.first(x)))


def samples(count: int, dtype: torch.dtype = torch.float64) -> tuple[Any, Any]:
    random = np.random.default_rng(0)
    x = random.normal(size=(count, 6))
    y = (x[:, :4] + 0.3 * random.normal(size=(count, 4))).argmax(1)
    return x.astype(str(dtype).removeprefix("torch.")), y


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().double().reshape(-1) for parameter in model.parameters()])


def distance(model: nn.Module, reference: nn.Module, start: torch.Tensor) -> float:
    """Return ||w - w_reference|| / ||w_reference - w_start|| over all weights."""
    moved = torch.linalg.vector_norm(flat(reference) - start)
    assert moved > 0
    return float(torch.linalg.vector_norm(flat(model) - flat(reference)) / moved)


def apart(model: nn.Module, other: nn.Module) -> float:
    """Return the largest difference of two models' weights."""
    return float((flat(model) - flat(other)).abs().max())


def digest(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> str:
    """Return one digest of weights, optimizer state and learning rates."""
    arrays = numpy_arrays(model)
    if optimizer is not None:
        for key, state in optimizer.state_dict()["state"].items():
            arrays |= {
                f"{key}.{name}": np.asarray(on_host(value)) for name, value in state.items() if value is not None
            }
        arrays["lr"] = np.array([float(group["lr"]) for group in optimizer.param_groups])
    return sha256(arrays)


def distributed(model: Any, optimizer: Any, data: Any, batch: int, epochs: int, **settings: Any) -> None:
    """Train with the verbs, in a custom loop."""
    uneven, between = settings.pop("uneven", "exact"), settings.pop("between_epochs", lambda *_: None)
    hk.distribute(optimizer, model, **settings)
    hk.broadcast(model, optimizer)
    batches = hk.shard(data, batch, seed=1, uneven=uneven, accumulate=settings.get("accumulate", 1))
    for epoch in range(epochs):
        for x, y in batches:
            cross_entropy(model(x), y).backward()
            if batches.last:
                optimizer.step()
                optimizer.zero_grad()
        between(model, epoch)


def alone(model: Any, optimizer: Any, data: Any, batch: int, epochs: int, **settings: Any) -> None:
    """Train on the whole global batch, in plain torch."""
    clip_norm, between = settings.get("clip_norm"), settings.get("between_epochs", lambda *_: None)
    x, y = (torch.from_numpy(part) for part in data)
    for epoch in range(epochs):
        for indices in np.array_split(ShardPlan(len(x), batch, seed=1).order(epoch), range(batch, len(x), batch)):
            cross_entropy(model(x[indices]), y[indices]).backward()
            if clip_norm is not None:
                clip(model, clip_norm)
            optimizer.step()
            optimizer.zero_grad()
        between(model, epoch)


def clip(model: nn.Module, limit: float) -> None:
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    norm = torch.sqrt(sum((gradient**2).sum() for gradient in gradients))
    for gradient in gradients:
        gradient.mul_(min(1.0, limit / float(norm)))


def compare(build: Any, source: Any, dtype: torch.dtype, count: int, batch: int, epochs: int, **settings: Any) -> Any:
    """Train distributed and alone; return the distance, the rank's digest, and both models.

    The distributed model of every rank but the first starts elsewhere, so a missing broadcast is seen.
    """
    data, size = samples(count, dtype), current().size
    model, reference = build(dtype, seed=rank()), build(dtype, seed=0)
    start = flat(reference)
    optimizer, plain = (hk.build_optimizer(source, entry)[0] for entry in (model, reference))
    distributed(model, optimizer, data, batch, epochs, **settings)
    alone(reference, plain, data, batch * size * settings.get("accumulate", 1), epochs, **settings)
    return distance(model, reference, start), digest(model, optimizer), model, reference
