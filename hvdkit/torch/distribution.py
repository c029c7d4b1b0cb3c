"""Step 5: gradients reduced over all ranks, by hooks on the user's own optimizer."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from hvdkit import world as worlds
from hvdkit.arrays import check_same
from hvdkit.channels import open_channel
from hvdkit.errors import ModelError, RecipeError
from hvdkit.recipe import Distribute
from hvdkit.torch.reducer import Reducer
from hvdkit.torch.tensors import kind
from hvdkit.world import World

_reducers: weakref.WeakKeyDictionary[torch.optim.Optimizer, Reducer | None] = weakref.WeakKeyDictionary()


def distribute(
    optimizer: torch.optim.Optimizer,
    model: torch.nn.Module | None = None,
    *,
    compression: str = "none",
    accumulate: int = 1,
    clip_norm: float | None = None,
) -> torch.optim.Optimizer:
    """Step 5: average the gradients of this optimizer's parameters over all ranks.

    The same object comes back, with its class, state and defaults; when ``backward()`` returns, gradients are reduced.
    On one process nothing is hooked unless ``accumulate`` or ``clip_norm`` asks for it.

    Args:
        optimizer: Any torch optimizer, with or without state.
        model: Names the parameters in messages, and tells which gradients are sparse.
        compression: ``fp16`` sends half precision, divided before the sum, limited where it would overflow.
        accumulate: Backward passes per ``step()``; their mean is applied. A ``step()`` that comes earlier divides by
            the passes there were.
        clip_norm: Clip the reduced gradient to this global norm in ``step()``, min(1, c / norm).

    Raises:
        RecipeError: The optimizer is distributed already, or an argument has a wrong value.
        ModelError: The model is wrapped in DDP or FSDP, or differs between ranks.
        EngineError: The engine cannot sum what the compression sends.
    """
    world = worlds.current()
    _check(optimizer, model, compression, accumulate, clip_norm)
    named = _named(optimizer, model)
    check_same(world, {name: kind(entry) + ("" if entry.requires_grad else " frozen") for name, entry in named.items()})
    _reducers[optimizer] = None
    if world.size > 1 or accumulate > 1:
        channel = open_channel(world, "torch")
        channel.check_compression(compression)
        reducer = Reducer(world, channel, named, _sparse(model), accumulate=accumulate, compression=compression)
        _reducers[optimizer] = reducer
    if _reducers[optimizer] is not None or clip_norm is not None:
        optimizer.register_step_pre_hook(_step_hook(world, _reducers[optimizer], list(named.values()), clip_norm))
    return optimizer


def reducer_of(optimizer: torch.optim.Optimizer) -> Reducer | None:
    """Return the reducer of a distributed optimizer, None on one process.

    Raises:
        RecipeError: The optimizer is not distributed.
    """
    if optimizer not in _reducers:
        raise RecipeError("this optimizer is not distributed; call hvdkit.torch.distribute(optimizer, model) first")
    return _reducers[optimizer]


def _step_hook(
    world: World, reducer: Reducer | None, parameters: list[torch.nn.Parameter], clip_norm: float | None
) -> Callable[..., Any]:
    """Return what runs before ``step()``, or at the end of each call of its closure, whose loss is averaged too."""

    def prepare() -> None:
        if reducer is not None:
            reducer.before_step()
        if clip_norm is not None:
            clip(parameters, clip_norm)

    def hook(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            return prepare()

        def averaged() -> Any:
            loss = closure()
            prepare()
            return loss if loss is None else torch.full_like(torch.as_tensor(loss), world.allreduce(float(loss)).item())

        return (args[0], averaged, *args[2:]), {name: value for name, value in kwargs.items() if name != "closure"}

    return hook


def clip(parameters: list[torch.nn.Parameter], limit: float) -> None:
    """Scale gradients by min(1, limit / norm), with the 2-norm over all of them."""
    grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
    values = [grad.coalesce().values() if grad.is_sparse else grad for grad in grads]
    if not values:
        return
    with torch.no_grad():
        norms = torch.stack([torch.linalg.vector_norm(value) for value in values])
        factor = (limit / torch.linalg.vector_norm(norms)).clamp(max=1.0)
        for grad in grads:
            grad.mul_(factor.to(grad.device))


def _check(optimizer: Any, model: Any, compression: str, accumulate: int, clip_norm: float | None) -> None:
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise RecipeError(f"distribute needs a torch optimizer, it got {type(optimizer).__name__}")
    if optimizer in _reducers:
        raise RecipeError("this optimizer is distributed already; call distribute once for each optimizer")
    Distribute(compression, accumulate, clip_norm)
    wrapped = {"DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule", "DataParallel"}
    for module in model.modules() if model is not None else ():
        if wrapped & {kind.__name__ for kind in type(module).__mro__}:
            raise ModelError(
                f"the model is wrapped in {type(module).__name__}, which reduces gradients itself; "
                "pass the plain model to hvdkit"
            )


def _named(optimizer: torch.optim.Optimizer, model: torch.nn.Module | None) -> dict[str, torch.nn.Parameter]:
    names = {id(parameter): name for name, parameter in model.named_parameters()} if model is not None else {}
    named: dict[str, torch.nn.Parameter] = {}
    for number, group in enumerate(optimizer.param_groups):
        for position, parameter in enumerate(group["params"]):
            named[names.get(id(parameter), f"group{number}.{position}")] = parameter
    return dict(sorted(named.items(), key=_model_order(model))) if model is not None else named


def _model_order(model: torch.nn.Module) -> Any:
    order = {name: position for position, (name, _) in enumerate(model.named_parameters())}
    return lambda item: order.get(item[0], len(order))


def _sparse(model: torch.nn.Module | None) -> set[int]:
    """Return the ids of parameters whose gradients are sparse."""
    modules = model.modules() if model is not None else ()
    return {id(module.weight) for module in modules if getattr(module, "sparse", False) and hasattr(module, "weight")}
