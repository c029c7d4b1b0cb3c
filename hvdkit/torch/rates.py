"""Step 4: the learning rate for the global batch."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from hvdkit.errors import RecipeError
from hvdkit.recipe.plan import LearningRate
from hvdkit.torch.gradients.parameters import sparse_parameters
from hvdkit.torch.graphs.recording import is_recording
from hvdkit.torch.tensors import device_of

# what a group notes of its warm-up, saved with the optimizer: the updates so far
_UPDATES = "warmup_updates"


class StepRates:
    """The rates that an optimizer steps at: those of its groups times shares, and on a GPU as tensors.

    Between steps the groups hold plain numbers. A recorded update reads the tensors, whatever they hold then.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._shares: list[Callable[[], float]] = []
        self._tensors: list[torch.Tensor] = []
        self._held: list[float] = []
        self._device: torch.device | None = None
        self._whole: list[Any] = []
        optimizer.register_step_pre_hook(self._put)
        optimizer.register_step_post_hook(self._reset)

    def add(self, share: Callable[[], float]) -> None:
        """Multiply by what this returns, from the next step on."""
        self._shares.append(share)

    def remove(self, share: Callable[[], float]) -> None:
        """Multiply by it no longer."""
        self._shares.remove(share)

    def put_on(self, device: torch.device) -> None:
        """Step at tensors of this device from now on, in float32."""
        self._device = device

    def fill(self, optimizer: torch.optim.Optimizer) -> None:
        """Write into the tensors what the next update takes."""
        rates = [float(rate) for rate in self._due(optimizer)]
        if self._device is None or rates == self._held:
            return
        while len(self._tensors) < len(rates):
            self._tensors.append(torch.zeros((), dtype=torch.float32, device=self._device))
        for tensor, rate in zip(self._tensors, rates, strict=True):
            tensor.fill_(rate)
        self._held = rates

    def take_back(self, optimizer: torch.optim.Optimizer) -> None:
        """Let the groups hold plain numbers again, where an error has ended a step."""
        if self._whole:
            self._reset(optimizer)

    def _due(self, optimizer: torch.optim.Optimizer) -> list[Any]:
        share = 1.0
        for each in self._shares:
            share *= each()
        return [group["lr"] if share == 1.0 else group["lr"] * share for group in optimizer.param_groups]

    def _put(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        due = self._due(optimizer)
        self._whole = [group["lr"] for group in optimizer.param_groups]
        if self._device is not None:
            if not is_recording():
                self.fill(optimizer)
            due = self._tensors
        for group, rate in zip(optimizer.param_groups, due, strict=True):
            group["lr"] = rate

    def _reset(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for group, rate in zip(optimizer.param_groups, self._whole, strict=True):
            group["lr"] = rate
        self._whole = []


_step_rates: weakref.WeakKeyDictionary[torch.optim.Optimizer, StepRates] = weakref.WeakKeyDictionary()


def step_rates(optimizer: torch.optim.Optimizer) -> StepRates:
    """Return what sets the rates that an optimizer steps at; one for each."""
    if optimizer not in _step_rates:
        _step_rates[optimizer] = StepRates(optimizer)
    return _step_rates[optimizer]


def takes_rate_tensors(optimizer: torch.optim.Optimizer) -> bool:
    """Say whether an optimizer takes its rate from, and counts its updates on, the device."""
    own = any(isinstance(group["lr"], torch.Tensor) for group in optimizer.param_groups)
    if own or not type(optimizer).__module__.startswith("torch.optim."):
        return False
    if isinstance(optimizer, torch.optim.SGD):
        # it counts no updates, and waits for its rate but in the kernel for all parameters
        return all(group.get("fused") for group in optimizer.param_groups)
    return "capturable" in optimizer.defaults


def step_on_device(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> None:
    """Let an optimizer of a model on a GPU take its rate from, and count its updates on, that GPU if it can."""
    device = device_of(model)
    if device.type == "cpu":
        return
    fusible = can_be_fused(model)
    for group in optimizer.param_groups:
        # an SGD of torch before 2.3 has no such kernel, and no option
        unset = "fused" in group and group["fused"] is None and group["foreach"] is None
        if isinstance(optimizer, torch.optim.SGD) and unset and fusible:
            group["fused"] = True
        if "capturable" in group:
            group["capturable"] = True
    if takes_rate_tensors(optimizer):
        step_rates(optimizer).put_on(device)


# since torch 2.3
_SGD_CAN_BE_FUSED = "fused" in inspect.signature(torch.optim.SGD).parameters


def can_be_fused(model: torch.nn.Module) -> bool:
    """Say whether one kernel may update all parameters: on a GPU, of floating point, with dense gradients."""
    parameters = list(model.parameters())
    return (
        _SGD_CAN_BE_FUSED
        and device_of(model).type == "cuda"
        and all(parameter.is_floating_point() for parameter in parameters)
        and not sparse_parameters(model)
    )


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
        self._multiplied = step_rates(optimizer)
        self._multiplied.add(self.share)
        _running[optimizer] = self
        super().__init__(optimizer)

    def remove(self) -> None:
        """Leave the rates alone from now on."""
        self._multiplied.remove(self.share)

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
