"""Step 6: one state on all ranks."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch

from hvdkit.job import world as worlds
from hvdkit.job.arrays import average_arrays, broadcast_arrays, check_same
from hvdkit.job.world import World
from hvdkit.torch.tensors import copy_from_bytes, kind, named_tensors, to_bytes

# what a broadcast seeded this rank with, so that a second one does not seed it again
_own_seeds: WeakKeyDictionary[World, int] = WeakKeyDictionary()


def broadcast(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None, root: int = 0) -> None:
    """Step 6: give every rank the parameters, buffers, optimizer state and learning rate of ``root``.

    The optimizer is not stepped; its state goes first and the weights last. Random state stays each rank's own:
    every rank but the first seeds torch anew with its seed + rank, unless it has done so.

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
    if world.rank != 0 and torch.initial_seed() != _own_seeds.get(world):
        _own_seeds[world] = torch.initial_seed() + world.rank
        torch.manual_seed(_own_seeds[world])


def average_buffers(model: torch.nn.Module) -> None:
    """Average floating-point buffers, BatchNorm's running statistics, over all ranks."""
    buffers = {name: buffer for name, buffer in model.named_buffers() if buffer.is_floating_point()}
    held = {name: buffer.detach().double().cpu().numpy() for name, buffer in buffers.items()}
    averaged = average_arrays(worlds.current(), held)
    with torch.no_grad():
        for name, buffer in buffers.items():
            buffer.copy_(torch.from_numpy(averaged[name]))


def _on_cpu(value: object) -> object:
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    if isinstance(value, dict):
        return {key: _on_cpu(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_on_cpu(entry) for entry in value)
    return value
