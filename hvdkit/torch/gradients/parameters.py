"""Which parameters an optimizer trains, under which names, and which reducer has them."""

from __future__ import annotations

from typing import Any
from weakref import WeakValueDictionary

import torch

from hvdkit.job.arrays import check_same
from hvdkit.job.world import World
from hvdkit.torch.gradients.reducer import Reducer
from hvdkit.torch.tensors import kind

Named = dict[str, torch.nn.Parameter]

# by the id of a parameter, which its reducer keeps alive
_reducers: WeakValueDictionary[int, Reducer] = WeakValueDictionary()


def reducer_of(parameter: torch.nn.Parameter) -> Reducer | None:
    """Return the reducer that averages a parameter's gradient, if there is one."""
    return _reducers.get(id(parameter))


def hand_over(named: Named, sparse: set[int], reducer: Reducer) -> None:
    """Let a reducer, and no other, average the gradients of these parameters."""
    keys = {id(parameter) for parameter in named.values()}
    for former in {id(held): held for key in keys if (held := _reducers.get(key)) is not None}.values():
        former.leave(keys)
    reducer.add(named, sparse)
    for key in keys:
        _reducers[key] = reducer


def named_parameters(optimizer: torch.optim.Optimizer, model: torch.nn.Module | None) -> Named:
    """Return an optimizer's parameters in its own order, by their names in the model or by their places."""
    names = {id(parameter): name for name, parameter in model.named_parameters()} if model is not None else {}
    return {
        names.get(id(parameter), f"group{number}.{position}"): parameter
        for number, group in enumerate(optimizer.param_groups)
        for position, parameter in enumerate(group["params"])
    }


def in_models_order(named: Named, model: torch.nn.Module | None) -> Named:
    """Return parameters in the order of the model, with those that it does not have at the end."""
    if model is None:
        return named
    order = {name: position for position, (name, _) in enumerate(model.named_parameters())}
    return dict(sorted(named.items(), key=lambda item: order.get(item[0], len(order))))


def check_alike(world: World, named: Named) -> None:
    """Check that all ranks train the same parameters, in the same order and groups.

    Raises:
        ModelError: They do not; on every rank.
    """
    check_same(world, {name: kind(entry) + ("" if entry.requires_grad else " frozen") for name, entry in named.items()})


def sparse_parameters(model: torch.nn.Module | None) -> set[int]:
    """Return the ids of parameters whose gradients are sparse."""
    modules: Any = model.modules() if model is not None else ()
    return {id(module.weight) for module in modules if getattr(module, "sparse", False) and hasattr(module, "weight")}
