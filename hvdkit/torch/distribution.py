"""Step 5: gradients reduced over all ranks, by hooks on the user's own optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch

from hvdkit.errors import ModelError, RecipeError
from hvdkit.job import world as worlds
from hvdkit.job.collective import on_all_ranks
from hvdkit.recipe.steps import Distribute
from hvdkit.torch.batch_norm import synchronise_batch_norm
from hvdkit.torch.gradients.distribution import Distribution
from hvdkit.torch.gradients.reducer import Reducer

_distributions: WeakKeyDictionary[torch.optim.Optimizer, Distribution] = WeakKeyDictionary()


@on_all_ranks
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
    On one process nothing is hooked unless ``accumulate`` or ``clip_norm`` asks for it. Optimizers may share
    parameters; where their settings differ, those of the last one count. ``add_param_group`` may follow, on all ranks.

    Args:
        optimizer: Any torch optimizer, with or without state.
        model: Names the parameters in messages, and tells which gradients are sparse.
        compression: ``fp16`` or ``bf16`` sends 16 bits, divided before the sum and limited where the sum would
            overflow; :func:`compression_losses` counts what that changed.
        accumulate: Backward passes per ``step()``; their mean is applied. A ``step()`` that comes earlier divides by
            the passes there were.
        clip_norm: Clip the reduced gradient to this global norm in ``step()``, min(1, c / norm).
        gradient_predivide: Divide by this before the sum and by size / this after it.
        reduction: ``average``; ``sum`` for a loss that is a sum over samples, which is not multiplied by the batches'
            weight; or ``adasum`` on a Horovod that runs over MPI.
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
    distribution = Distribution(world, optimizer, model, settings)
    if sync_batchnorm:
        synchronise_batch_norm(world, model)
    _distributions[optimizer] = distribution
    vars(optimizer)["add_param_group"] = _followed(ref(optimizer), distribution)
    return optimizer


def _followed(held: ref[torch.optim.Optimizer], distribution: Distribution) -> Callable[[dict[str, Any]], None]:
    """Return the optimizer's own method, after which new parameters are reduced too."""

    def add_param_group(param_group: dict[str, Any]) -> None:
        optimizer = held()
        if optimizer is not None:
            type(optimizer).add_param_group(optimizer, param_group)
            distribution.take_parameters()

    return add_param_group


def _of(optimizer: torch.optim.Optimizer) -> Distribution:
    if optimizer not in _distributions:
        raise RecipeError("this optimizer is not distributed; call hvdkit.torch.distribute(optimizer, model) first")
    return _distributions[optimizer]


def reducers_of(optimizer: torch.optim.Optimizer) -> list[Reducer]:
    """Return what reduces an optimizer's gradients; nothing where no reduction is needed."""
    distribution = _distributions.get(optimizer)
    return [] if distribution is None else distribution.reducers


@contextmanager
def no_sync(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Let backward passes inside only accumulate on this rank; the next one outside reduces them all.

    The mean of all these passes is applied, also on one process.

    Raises:
        RecipeError: The optimizer is not distributed.
    """
    with _of(optimizer).no_sync():
        yield


def synchronize(optimizer: torch.optim.Optimizer) -> None:
    """Reduce now what an incomplete accumulation has left, where something reads gradients before ``step()``.

    A ``GradScaler.unscale_`` or ``step`` after fewer than ``accumulate`` passes is such a case; called by all ranks.

    Raises:
        RecipeError: The optimizer is not distributed.
    """
    for reducer in _of(optimizer).reducers:
        reducer.finish()


def compression_losses(optimizer: torch.optim.Optimizer) -> dict[str, int]:
    """Return how many gradient elements compression has changed beyond rounding on this rank so far.

    Returns:
        ``clipped``, too large for 16 bits, and ``lost``, so small that they became 0.

    Raises:
        RecipeError: The optimizer is not distributed.
    """
    losses = [reducer.losses() for reducer in _of(optimizer).reducers]
    return {name: sum(each[name] for each in losses) for name in ("clipped", "lost")}


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
    trained = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    held = {id(parameter) for parameter in model.parameters()} if model is not None else trained
    if held and not trained & held:
        raise ModelError("the optimizer trains no parameter of this model; pass the model that it was made for")
