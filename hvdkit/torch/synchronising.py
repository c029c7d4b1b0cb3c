"""Step 6: one state on all ranks."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from hvdkit.errors import ModelError
from hvdkit.job import world as worlds
from hvdkit.job.arrays import average_arrays, broadcast_arrays, check_same
from hvdkit.job.collective import on_all_ranks
from hvdkit.torch.drift import check_used, note_broadcast
from hvdkit.torch.random_state import separate
from hvdkit.torch.tensors import copy_from_bytes, kind, named_tensors, to_bytes


@on_all_ranks
def broadcast(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None, root: int = 0) -> None:
    """Step 6: give every rank the parameters, buffers, optimizer state and learning rate of ``root``.

    The optimizer is not stepped; its state goes first and the weights last. Random state stays each
    rank's own: ranks that were seeded alike, in torch, NumPy or Python, draw other numbers from here on, rank 0 those
    that it would draw alone.

    Args:
        model: Built alike on all ranks; tensors of any dtype.
        optimizer: Its state and every option of its groups are sent.
        root: The rank whose state counts.

    Raises:
        ModelError: The models differ between ranks; the message names the tensor.
        CollectiveError: There is no such rank.
    """
    world = worlds.current()
    world.engine.check_root(root)
    tensors = dict(named_tensors(model))
    check_same(world, {name: kind(tensor) for name, tensor in tensors.items()})
    note_broadcast(model)
    if world.size == 1:
        return
    if optimizer is not None:
        state = world.broadcast_object(_on_cpu(optimizer.state_dict()) if world.rank == root else None, root)
        if world.rank != root:
            optimizer.load_state_dict(state)
    received = broadcast_arrays(world, {name: to_bytes(tensor) for name, tensor in tensors.items()}, root)
    if world.rank != root:
        for name, tensor in tensors.items():
            copy_from_bytes(tensor, received[name])
    separate(world)


@on_all_ranks
def synchronise_statistics(model: torch.nn.Module, also: Iterable[str] = ()) -> None:
    """Average BatchNorm's running statistics over all ranks, before a model is evaluated, used or saved by hand.

    Every buffer called ``running_mean`` or ``running_var`` is such a statistic; other buffers stay each rank's own.

    Args:
        model: Called by all ranks with the same model.
        also: Names of other floating-point buffers to average, as in ``model.named_buffers()``.

    Raises:
        ModelError: The weights differ between ranks, there is no such buffer, or it is not of floating point.
    """
    check_used(worlds.current(), model)
    buffers, named = dict(model.named_buffers()), list(also)
    for name in named:
        if name not in buffers or not buffers[name].is_floating_point():
            raise ModelError(f"the model has no floating-point buffer {name!r} to average; see model.named_buffers()")
    chosen = {name: buffer for name, buffer in buffers.items() if name in named or name.split(".")[-1] in _STATISTICS}
    held = {name: buffer.detach().double().cpu().numpy() for name, buffer in chosen.items()}
    averaged = average_arrays(worlds.current(), held)
    with torch.no_grad():
        for name, buffer in chosen.items():
            buffer.copy_(torch.from_numpy(averaged[name]))


_STATISTICS = ("running_mean", "running_var")


def _on_cpu(value: object) -> object:
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    if isinstance(value, dict):
        return {key: _on_cpu(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_on_cpu(entry) for entry in value)
    return value
