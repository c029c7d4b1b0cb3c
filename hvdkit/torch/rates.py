"""Step 4: the learning rate for the global batch."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from hvdkit.errors import RecipeError
from hvdkit.recipe.plan import LearningRate

# what a group notes of its warm-up, saved with the optimizer: the updates so far
_UPDATES = "warmup_updates"


class Share:
    """Multiplies the rates while the optimizer steps, and no longer: any scheduler beside it keeps its effect.

    Args:
        optimizer: Its groups' rates stand as they are between steps.
        share: Returns what they are multiplied by in the next update.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, share: Callable[[], float]) -> None:
        self._share = share
        self._whole: list[Any] = []
        self._hooks = [
            optimizer.register_step_pre_hook(self._multiply),
            optimizer.register_step_post_hook(self._reset),
        ]

    def remove(self) -> None:
        """Leave the rates alone from now on."""
        for hook in self._hooks:
            hook.remove()

    def _multiply(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        share = self._share()
        self._whole = [group["lr"] for group in optimizer.param_groups]
        if share != 1.0:
            for group in optimizer.param_groups:
                group["lr"] = group["lr"] * share

    def _reset(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for group, rate in zip(optimizer.param_groups, self._whole, strict=True):
            group["lr"] = rate


class _Warmup(LRScheduler):
    """Raises the rates over the first updates."""

    def __init__(self, optimizer: torch.optim.Optimizer, rates: LearningRate) -> None:
        self._shares = rates
        former = _running.pop(optimizer, None)
        if former is not None:
            former.remove()
        for group in optimizer.param_groups:
            if former is not None:
                group.pop(_UPDATES, None)
            group.setdefault(_UPDATES, 0)
        self._multiplier = Share(optimizer, self.share)
        _running[optimizer] = self
        super().__init__(optimizer)

    def remove(self) -> None:
        """Leave the rates alone from now on."""
        self._multiplier.remove()

    def share(self) -> float:
        """Return what the rates are multiplied by in the next update."""
        return self._shares.at(self.optimizer.param_groups[0].get(_UPDATES, 0))

    def get_lr(self) -> list[Any]:
        """Count an update; return the rates that the warm-up leads to, which are those of other schedulers."""
        if self.last_epoch > 0:
            for group in self.optimizer.param_groups:
                group[_UPDATES] = group.get(_UPDATES, 0) + 1
        return [group["lr"] for group in self.optimizer.param_groups]

    def get_last_lr(self) -> list[float]:
        """Return the rates of the next update."""
        return [float(group["lr"]) * self.share() for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """Return the position."""
        return {"last_epoch": self.last_epoch, "updates": self.optimizer.param_groups[0].get(_UPDATES, 0)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a position."""
        self.last_epoch = state_dict["last_epoch"]
        for group in self.optimizer.param_groups:
            group[_UPDATES] = state_dict["updates"]


_running: weakref.WeakKeyDictionary[torch.optim.Optimizer, _Warmup] = weakref.WeakKeyDictionary()


def warmup(target: torch.optim.Optimizer, *, base: float, steps_per_epoch: int, epochs: float = 5.0) -> LRScheduler:
    """Return a scheduler that raises the rate from ``base`` to the optimizer's over the first epochs.

    Call its ``step()`` after each ``optimizer.step()``. The rise is linear, and ends with the last warm-up epoch
    (Goyal et al., 2017, section 2.2). Updates are made at a share of the rate that stands in ``param_groups``, which
    other schedulers may change at the same time; ``get_last_lr()`` gives the rates of the next update. Made after
    :func:`restore`, it goes on where the saved run was.

    Args:
        target: The optimizer, made with the scaled learning rate.
        base: The learning rate of one process.
        steps_per_epoch: Updates per epoch.
        epochs: Length of the warm-up.

    Raises:
        RecipeError: ``base`` is above the optimizer's rate.
    """
    scaled = leading_rate(target)
    if base > scaled > 0:
        raise RecipeError(
            f"warmup would lower the rate, from {base:g} to {scaled:g}; make the optimizer with the scaled rate, and "
            "the warm-up before schedulers that change it at once"
        )
    first = base / scaled if scaled else 1.0
    return _Warmup(target, LearningRate(first, 1.0, steps_per_epoch, epochs))


def leading_rate(optimizer: torch.optim.Optimizer) -> float:
    """Return the rate of the first group whose rate is not 0, which is scaled and shown; those of others follow it."""
    rates = [float(group["lr"]) for group in optimizer.param_groups]
    return next((rate for rate in rates if rate), 0.0)


def set_rate(optimizer: torch.optim.Optimizer, rate: float, bases: list[float]) -> None:
    """Set the learning rate; ``bases`` are the rates of the groups for one process, whose ratios are kept."""
    leading = next((base for base in bases if base), 1.0)
    for group, base in zip(optimizer.param_groups, bases, strict=True):
        group["lr"] = rate if base == leading else base * (rate / leading)
