"""Runs with and without recorded updates; imported by ranks only."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import torch
from recorded_ops import recording
from torch import nn
from torch_cases import digest, mlp, samples
from torch_recipes import curve, recipe

import hvdkit
import hvdkit.torch as hk


class Net(nn.Module):
    """Dropout, BatchNorm, and a layer whose gradient some cases freeze."""

    def __init__(self, dropout: float = 0.5) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Linear(16, 4)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.dropout(torch.relu(self.norm(self.first(x)))))


def net(**options: Any) -> Any:
    return {"torch": lambda: Net(**options)}


def trained(cuda_graphs: bool | str = "auto", **changes: Any) -> dict[str, Any]:
    """Train; return numbers that tell runs apart, and what was recorded."""
    values = {"model": net(), "batch_size": 4, "epochs": 4, "data": data(48)}
    told = io.StringIO()
    with recording() as recorder, contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
        trainer = hvdkit.apply(recipe(**{**values, **changes}, cuda_graphs=cuda_graphs), framework="torch")
        trainer.fit()
    return {
        "digest": digest(trainer.model, trainer.optimizer),
        "curve": curve(trainer),
        "recorded": recorder.recorded,
        "replays": recorder.replays,
        "told": told.getvalue(),
        "summary": trainer.summary(),
    }


def eight_lines() -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return a model and its distributed optimizer, on this rank's device."""
    model = mlp(torch.float32).to(hk.pin())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hk.distribute(optimizer, model)
    hk.broadcast(model, optimizer)
    return model, optimizer


def data(count: int) -> hvdkit.Data:
    x, y = samples(count + 16, torch.float32)
    return hvdkit.Data(train=(x[:count], y[:count]), validation=(x[count:], y[count:]))


def both(**changes: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a run with recorded updates and one without."""
    return trained("auto", **changes), trained(False, **changes)
