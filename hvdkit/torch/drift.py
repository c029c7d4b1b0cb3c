"""Looks at the weights that optimizers train: all ranks must hold the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from hvdkit.job.world import World
from hvdkit.torch.graphs.recording import current_run
from hvdkit.torch.tensors import sum_of_bits
from hvdkit.training import drift as neutral
from hvdkit.training.batches import in_sharded_loop
from hvdkit.training.drift import DriftGuard

_guards: WeakKeyDictionary[torch.optim.Optimizer, DriftGuard] = WeakKeyDictionary()
# those that reduce, and look when they have reduced, since a rank without a graph reduces only then
_distributed: WeakSet[torch.optim.Optimizer] = WeakSet()
_broadcast: WeakSet[torch.nn.Module] = WeakSet()
_named: WeakSet[torch.nn.Module] = WeakSet()
_left_alone: WeakSet[torch.optim.Optimizer] = WeakSet()
_handles: list[Any] = []

_CHANGED = (
    "something changed weights or gradients on some ranks only, such as gradients that are changed by hand after "
    "backward()"
)
_NOT_DISTRIBUTED = "call distribute(optimizer, model), so that gradients are averaged"


def guard(world: World) -> None:
    """Look at every optimizer that steps from now on in a job of several processes."""
    while _handles:
        _handles.pop().remove()
    if world.size > 1 and world.guard:
        _handles.append(register_optimizer_step_pre_hook(_hook(world, _before_step)))
        _handles.append(register_optimizer_step_post_hook(_hook(world, _after_step)))


def note_broadcast(model: torch.nn.Module) -> None:
    """Expect equal weights in this model from now on."""
    _broadcast.add(model)
    _named.add(model)


def note_distributed(optimizer: torch.optim.Optimizer, model: torch.nn.Module | None) -> None:
    """Leave the first look to the distributed optimizer, which calls :func:`look_before_step`."""
    _distributed.add(optimizer)
    if model is not None:
        _named.add(model)


def leave_alone(optimizer: torch.optim.Optimizer) -> None:
    """Never look at an optimizer whose ranks are meant to hold other weights for a while."""
    _left_alone.add(optimizer)


def look_before_step(world: World, optimizer: torch.optim.Optimizer, local: Sequence[torch.Tensor] = ()) -> None:
    """Compare the weights over ranks before the first update; called by all ranks.

    Args:
        world: The job.
        optimizer: Whose weights.
        local: Gradients of this rank before they were averaged, which should not be the same on all ranks.
    """
    if optimizer in _guards or optimizer in _left_alone or not (world.guard and world.size > 1):
        return
    _guards[optimizer] = DriftGuard(world, _CHANGED if optimizer in _distributed else _NOT_DISTRIBUTED)
    _look(_guards[optimizer], optimizer, local)


def check_used(world: World, model: torch.nn.Module) -> None:
    """Refuse a model whose weights differ between ranks where one rank's are taken for those of all.

    Those that ranks are meant to train apart are no matter. Called by all ranks.
    """
    if world.size == 1 or not world.guard:
        return
    apart = {id(parameter) for optimizer in _left_alone for parameter in _trained(optimizer)}
    named = {
        name: parameter
        for name, parameter in model.named_parameters()
        if id(parameter) not in apart and not torch.nn.parameter.is_lazy(parameter)
    }
    advice = neutral.CHANGED_LATER if model in _broadcast else neutral.NOT_BROADCAST
    neutral.check_used(world, list(named), _digests(list(named.values())), advice)


def _hook(world: World, action: Callable[[World, torch.optim.Optimizer], None]) -> Any:
    def hook(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        del args, kwargs
        action(world, optimizer)

    return hook


def _before_step(world: World, optimizer: torch.optim.Optimizer) -> None:
    if optimizer not in _guards and optimizer not in _distributed and _is_shared(optimizer):
        look_before_step(world, optimizer)


def _after_step(world: World, optimizer: torch.optim.Optimizer) -> None:
    del world
    run = current_run()
    if run is None:
        count_updates([optimizer])
    else:
        # a look waits for the device, which no recording can
        run.updated.append(optimizer)


def count_updates(optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Count an update of each, and compare the weights where that is due."""
    for optimizer in optimizers:
        guard = _guards.get(optimizer)
        if guard is not None:
            guard.updates += 1
            if guard.is_due:
                _look(guard, optimizer)


def _is_shared(optimizer: torch.optim.Optimizer) -> bool:
    """Say whether all ranks train these weights together, as far as one can know."""
    trained = {id(parameter) for parameter in _trained(optimizer)}
    return in_sharded_loop() or any(
        id(parameter) in trained for model in _broadcast for parameter in model.parameters()
    )


def _look(guard: DriftGuard, optimizer: torch.optim.Optimizer, local: Sequence[torch.Tensor] = ()) -> None:
    parameters = _trained(optimizer)
    if not parameters:
        return
    digests = _digests([*parameters, *local])
    guard.look(_names(parameters), digests[: len(parameters)], digests[len(parameters) :])


def _trained(optimizer: torch.optim.Optimizer) -> list[torch.nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _digests(tensors: Sequence[torch.Tensor]) -> list[int]:
    """Return one for each; of all tensors at once, so that the host waits once."""
    if not tensors:
        return []
    with torch.no_grad():
        sums = [sum_of_bits(tensor) for tensor in tensors]
        digests: list[int] = torch.stack([each.to(sums[0].device) for each in sums]).tolist()
    return digests


def _names(parameters: list[torch.nn.Parameter]) -> list[str]:
    known = {id(parameter): name for model in _named for name, parameter in model.named_parameters()}
    return [known.get(id(parameter), f"parameter {place}") for place, parameter in enumerate(parameters)]
