"""Named arrays of a whole model: compared, sent and summed up as one; NumPy alone."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvdkit.errors import ModelError
from hvdkit.job.world import World

Arrays = dict[str, NDArray[Any]]


def on_host(value: Any) -> Any:
    """Return an array, a tensor or a variable of any framework as an array, bfloat16 as float32; else the value."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.float() if str(value.dtype) == "torch.bfloat16" else value
    value = value.numpy() if hasattr(value, "numpy") else value
    if not hasattr(value, "__array__"):
        return value
    array = np.asarray(value)
    return array.astype(np.float32) if array.dtype.kind == "V" else array


def check_same(world: World, kinds: Mapping[str, str]) -> None:
    """Check that every rank has the same names with the same shapes and dtypes.

    Args:
        world: The job.
        kinds: For each name, its dtype and shape as text.

    Raises:
        ModelError: On every rank, naming the first difference and the ranks.
    """
    if world.size == 1:
        return
    digest = hashlib.sha256(repr(list(kinds.items())).encode()).hexdigest()
    if len(set(world.engine.allgather_object(digest))) == 1:
        return
    for rank, other in enumerate(world.engine.allgather_object(dict(kinds))):
        first = world.engine.broadcast_object(dict(kinds))
        for name in [*first, *other]:
            if first.get(name) != other.get(name):
                raise ModelError(
                    f"the model differs between ranks: {name!r} is {first.get(name, 'missing')} on rank 0 and "
                    f"{other.get(name, 'missing')} on rank {rank}; build it from the same settings on every rank"
                )
        if list(first) != list(other):
            mine, theirs = next(pair for pair in zip(first, other, strict=True) if pair[0] != pair[1])
            raise ModelError(
                f"the model's parts come in another order on rank {rank}, {theirs!r} where rank 0 has {mine!r}; "
                "take them from a list, or from model.parameters(), not from a set"
            )


def broadcast_arrays(world: World, arrays: Mapping[str, NDArray[Any]], root: int) -> Arrays:
    """Return the arrays of ``root`` on every rank, sent as one buffer; any dtype of fixed size.

    Raises:
        ModelError: Names, shapes or dtypes differ between ranks.
        CollectiveError: There is no such rank.
    """
    world.engine.check_root(root)
    check_same(world, {name: f"{value.dtype} {value.shape}" for name, value in arrays.items()})
    if world.size == 1 or not arrays:
        return dict(arrays)
    flat = [np.ascontiguousarray(value).reshape(-1).view(np.uint8) for value in arrays.values()]
    received = world.broadcast(np.concatenate(flat), root)
    ends = np.cumsum([len(part) for part in flat])
    return {
        name: received[end - len(part) : end].view(value.dtype).reshape(value.shape)
        for (name, value), part, end in zip(arrays.items(), flat, ends, strict=True)
    }


def average_arrays(world: World, arrays: Mapping[str, NDArray[Any]]) -> Arrays:
    """Average floating-point arrays over all ranks, in float64; what is equal on all ranks stays bit for bit."""
    if world.size == 1 or not arrays:
        return dict(arrays)
    flat = np.concatenate([value.reshape(-1).astype(np.float64) for value in arrays.values()])
    lowest, highest = world.allreduce(flat, "min"), world.allreduce(flat, "max")
    mean = np.where(lowest == highest, flat, world.allreduce(flat, "mean"))
    ends = np.cumsum([value.size for value in arrays.values()])
    return {
        name: mean[end - value.size : end].astype(value.dtype).reshape(value.shape)
        for (name, value), end in zip(arrays.items(), ends, strict=True)
    }


def sha256(arrays: Mapping[str, NDArray[Any]]) -> str:
    """Return one digest of all names, dtypes, shapes and bytes."""
    digest = hashlib.sha256()
    for name, value in arrays.items():
        digest.update(f"{name} {value.dtype} {value.shape}".encode())
        digest.update(np.ascontiguousarray(value).tobytes())
    return digest.hexdigest()
