"""Step 5: gradients reduced over all ranks, by hooks on the user's own optimizer."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

import torch

from hvdkit.engines.channel import Channel
from hvdkit.engines.serial.channel import SerialChannel
from hvdkit.engines.table import open_channel
from hvdkit.errors import ModelError, RecipeError
from hvdkit.job import world as worlds
from hvdkit.job.arrays import check_same
from hvdkit.job.world import World
from hvdkit.recipe.steps import Distribute
from hvdkit.torch.batch_norm import synchronise_batch_norm
from hvdkit.torch.gradients.reducer import Reducer
from hvdkit.torch.gradients.reductions import Mean, Reduction, make_reduction
from hvdkit.torch.tensors import kind


class Distribution:
    """What :func:`distribute` has made of an optimizer: reduce, then clip, before each update."""

    def __init__(
        self,
        world: World,
        optimizer: torch.optim.Optimizer,
        named: dict[str, torch.nn.Parameter],
        sparse: set[int],
        clip_norm: float | None,
    ) -> None:
        self.reducer: Reducer | None = None
        self._world, self._optimizer = world, weakref.ref(optimizer)
        self._named, self._sparse, self._clip_norm = named, sparse, clip_norm
        self._hooked = False
        if clip_norm is not None:
            self._hook()

    def reduce(self, channel: Channel, reduction: Reduction, accumulate: int) -> None:
        """Hook a reducer on the parameters."""
        self.reducer = Reducer(channel, reduction, self._named, self._sparse, accumulate)
        self._hook()

    def _hook(self) -> None:
        optimizer = self._optimizer()
        if optimizer is not None and not self._hooked:
            self._hooked = True
            optimizer.register_step_pre_hook(self._before_step)

    def _before_step(self, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run before ``step()``, or at the end of each call of its closure, whose loss is averaged too."""
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            return self._prepare()

        def averaged() -> Any:
            loss = closure()
            self._prepare()
            if loss is None:
                return None
            value = torch.as_tensor(loss).detach()
            return torch.full_like(value, self._world.allreduce(float(value)).item())

        return (args[0], averaged, *args[2:]), {name: value for name, value in kwargs.items() if name != "closure"}

    def _prepare(self) -> None:
        if self.reducer is not None:
            self.reducer.before_step()
        if self._clip_norm is not None:
            # a fused optimizer under a gradient scaler gets gradients that it divides itself
            scale = getattr(self._optimizer(), "grad_scale", None)
            clip(list(self._named.values()), self._clip_norm if scale is None else self._clip_norm * scale)


_distributions: weakref.WeakKeyDictionary[torch.optim.Optimizer, Distribution] = weakref.WeakKeyDictionary()


def distribute(
    optimizer: torch.optim.Optimizer,
    model: torch.nn.Module | None = None,
    *,
    compression: str = "none",
    accumulate: int = 1,
    clip_norm: float | None = None,
    gradient_predivide: float | None = None,
    reduction: str = "average",
    sync_batchnorm: bool = False,
) -> torch.optim.Optimizer:
    """Step 5: average the gradients of this optimizer's parameters over all ranks.

    The same object comes back, with its class, state and defaults; when ``backward()`` returns, gradients are reduced.
    On one process nothing is hooked unless ``accumulate`` or ``clip_norm`` asks for it.

    Args:
        optimizer: Any torch optimizer, with or without state.
        model: Names the parameters in messages, and tells which gradients are sparse.
        compression: ``fp16`` or ``bf16`` sends 16 bits, divided before the sum and limited where the sum would
            overflow; :func:`compression_losses` counts what that changed.
        accumulate: Backward passes per ``step()``; their mean is applied. A ``step()`` that comes earlier divides by
            the passes there were.
        clip_norm: Clip the reduced gradient to this global norm in ``step()``, min(1, c / norm).
        gradient_predivide: Divide by this before the sum and by size / this after it.
        reduction: ``average``, or ``adasum`` on a Horovod that runs over MPI.
        sync_batchnorm: Let the model's BatchNorm layers take the statistics of the global batch, in place.

    Raises:
        RecipeError: The optimizer is distributed already, or an argument has a wrong value.
        ModelError: The model is wrapped in DDP or FSDP, or differs between ranks.
        EngineError: The engine cannot sum what the compression sends, or has no Adasum.
    """
    world = worlds.current()
    settings = Distribute(
        compression, accumulate, clip_norm, gradient_predivide, reduction=reduction, sync_batchnorm=sync_batchnorm
    )
    _check(optimizer, model)
    named = _named(optimizer, model)
    check_same(world, {name: kind(entry) + ("" if entry.requires_grad else " frozen") for name, entry in named.items()})
    distribution = Distribution(world, optimizer, named, _sparse(model), clip_norm)
    if world.size > 1 or accumulate > 1:
        channel = open_channel(world.engine, "torch")
        distribution.reduce(channel, make_reduction(channel, settings), accumulate)
    if sync_batchnorm:
        synchronise_batch_norm(world, model)
    _distributions[optimizer] = distribution
    return optimizer


def _of(optimizer: torch.optim.Optimizer) -> Distribution:
    if optimizer not in _distributions:
        raise RecipeError("this optimizer is not distributed; call hvdkit.torch.distribute(optimizer, model) first")
    return _distributions[optimizer]


@contextlib.contextmanager
def no_sync(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Let backward passes inside only accumulate on this rank; the next one outside reduces them all.

    The mean of all these passes is applied, also on one process.

    Raises:
        RecipeError: The optimizer is not distributed.
    """
    distribution = _of(optimizer)
    if distribution.reducer is None:
        distribution.reduce(SerialChannel(), Mean(SerialChannel()), 1)
    assert distribution.reducer is not None
    with distribution.reducer.no_sync():
        yield


def synchronize(optimizer: torch.optim.Optimizer) -> None:
    """Reduce now what an incomplete accumulation has left, where something reads gradients before ``step()``.

    A ``GradScaler.unscale_`` or ``step`` after fewer than ``accumulate`` passes is such a case; called by all ranks.

    Raises:
        RecipeError: The optimizer is not distributed.
    """
    reducer = _of(optimizer).reducer
    if reducer is not None:
        reducer.finish()


def compression_losses(optimizer: torch.optim.Optimizer) -> dict[str, int]:
    """Return how many gradient elements compression has changed beyond rounding on this rank so far.

    Returns:
        ``clipped``, too large for 16 bits, and ``lost``, so small that they became 0.

    Raises:
        RecipeError: The optimizer is not distributed.
    """
    reducer = _of(optimizer).reducer
    return reducer.losses() if reducer is not None else {"clipped": 0, "lost": 0}


def clip(parameters: list[torch.nn.Parameter], limit: float | torch.Tensor) -> None:
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


def _check(optimizer: Any, model: Any) -> None:
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise RecipeError(f"distribute needs a torch optimizer, it got {type(optimizer).__name__}")
    if optimizer in _distributions:
        raise RecipeError("this optimizer is distributed already; call distribute once for each optimizer")
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
