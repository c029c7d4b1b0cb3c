"""Step 6: one state on all ranks."""

from __future__ import annotations

import torch

from hvdkit import world as worlds
from hvdkit.arrays import broadcast_arrays, check_same
from hvdkit.torch.tensors import copy_from_bytes, kind, named_tensors, to_bytes


def broadcast(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None, root: int = 0) -> None:
    """Step 6: give every rank the parameters, buffers, optimizer state and learning rate of ``root``.

    The optimizer is not stepped; its state goes first and the weights last. Random state stays each rank's own:
    every rank but the first seeds torch anew with its seed + rank.

    Args:
        model: Built alike on all ranks; tensors of any dtype.
        optimizer: Its state and every option of its groups are sent.
        root: The rank whose state counts.

    Raises:
        ModelError: The models differ between ranks; the message names the tensor.
        CollectiveError: There is no such rank.
    """
    world = worlds.current()
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
    if world.rank != 0:
        torch.manual_seed(torch.initial_seed() + world.rank)


def average_buffers(model: torch.nn.Module) -> None:
    """Average floating-point buffers, BatchNorm's running statistics, over all ranks."""
    world = worlds.current()
    if world.size == 1:
        return
    buffers = [buffer for _, buffer in model.named_buffers() if buffer.is_floating_point()]
    if not buffers:
        return
    flat = torch.cat([buffer.detach().double().cpu().reshape(-1) for buffer in buffers])
    mean = torch.from_numpy(world.allreduce(flat.numpy(), "mean"))
    with torch.no_grad():
        for buffer, part in zip(buffers, mean.split([buffer.numel() for buffer in buffers]), strict=True):
            buffer.copy_(part.reshape(buffer.shape))


def _on_cpu(value: object) -> object:
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    if isinstance(value, dict):
        return {key: _on_cpu(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_on_cpu(entry) for entry in value)
    return value
