"""Step 4: the learning rate for the global batch."""

from __future__ import annotations

import torch

from hvdkit.recipe.plan import LearningRate


def warmup(
    target: torch.optim.Optimizer, *, base: float, steps_per_epoch: int, epochs: float = 5.0
) -> torch.optim.lr_scheduler.LambdaLR:
    """Return a scheduler that raises the rate from ``base`` to the optimizer's over the first epochs.

    Call its ``step()`` after each ``optimizer.step()``. The rise is linear, and ends with the last warm-up epoch
    (Goyal et al., 2017, section 2.2).

    Args:
        target: The optimizer, made with the scaled learning rate.
        base: The learning rate of one process.
        steps_per_epoch: Updates per epoch.
        epochs: Length of the warm-up.
    """
    scaled = float(target.param_groups[0]["lr"])
    rates = LearningRate(base, scaled, steps_per_epoch, epochs)
    return torch.optim.lr_scheduler.LambdaLR(target, lambda step: rates.at(step) / scaled)


def set_rate(optimizer: torch.optim.Optimizer, rate: float, bases: list[float]) -> None:
    """Set the learning rate; ``bases`` are the rates of the groups for one process, whose ratios are kept."""
    for group, base in zip(optimizer.param_groups, bases, strict=True):
        group["lr"] = rate if base == bases[0] else base * (rate / bases[0])
