"""More faults of steps 1, 2 and 6: threads, and what ranks start from."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any

import numpy as np
from mutant_recipes import backends, mutant, nets
from mutant_tools import everywhere, in_torch

from hvdkit.job import arrays, devices, random_streams

Arrays = dict[str, Any]


@mutant("pin")
def threads_not_shared() -> None:
    """Every rank takes all cores."""
    everywhere(devices, "threads_for", lambda world, threads: 2 * len(os.sched_getaffinity(0)))


def _sent(change: Callable[[Arrays, Arrays, Any, int], Arrays]) -> None:
    """Change what ranks take of a broadcast: own arrays, received ones, the job and the root."""
    broadcast_arrays = arrays.broadcast_arrays

    def changed(world: Any, own: Arrays, root: int) -> Arrays:
        return change(own, broadcast_arrays(world, own, root), world, root)

    everywhere(arrays, "broadcast_arrays", changed)


@mutant("broadcast")
def one_array_not_sent() -> None:
    """The first array stays each rank's own."""
    _sent(lambda own, received, world, root: {**received, next(iter(own)): own[next(iter(own))]})


@mutant("broadcast")
def last_array_not_sent() -> None:
    """The last array stays each rank's own."""
    _sent(lambda own, received, world, root: {**received, list(own)[-1]: own[list(own)[-1]]})


@mutant("broadcast")
def wrong_root() -> None:
    """The last rank's state counts."""
    broadcast_arrays = arrays.broadcast_arrays
    everywhere(arrays, "broadcast_arrays", lambda world, own, root: broadcast_arrays(world, own, world.size - 1))
    if in_torch():
        module = importlib.import_module("hvdkit.torch.synchronising")
        send = module.broadcast
        from hvdkit.job import world as worlds

        for backend in backends():
            backend.broadcast = lambda model, optimizer=None, root=0: send(model, optimizer, worlds.current().size - 1)


@mutant("broadcast")
def weights_sent_in_half_precision() -> None:
    """What arrives has lost digits, also on the root."""

    def rounded(values: Any) -> Any:
        held = np.asarray(values)
        if held.dtype == np.uint8 and held.size % 4 == 0:
            return held.view(np.float32).astype(np.float16).astype(np.float32).view(np.uint8).reshape(held.shape)
        return held.astype(np.float16).astype(held.dtype) if held.dtype == np.float32 else held

    _sent(lambda own, received, world, root: {name: rounded(value) for name, value in received.items()})


@mutant("broadcast")
def weights_averaged_instead() -> None:
    """Ranks start from the mean of all initial weights."""

    def averaged(own: Arrays, received: Arrays, world: Any, root: int) -> Arrays:
        everyone = world.engine.allgather_object(own)
        return {name: _mean([one[name] for one in everyone]) for name in own}

    _sent(averaged)


def _mean(values: list[Any]) -> Any:
    if values[0].dtype == np.uint8:
        return np.mean([value.view(np.float32) for value in values], axis=0).astype(np.float32).view(np.uint8)
    return np.mean(values, axis=0).astype(values[0].dtype)


@mutant("broadcast", ("torch", "keras"), model=nets(False, dropout=True))
def one_random_stream_for_all() -> None:
    """Ranks draw the same dropout masks."""
    random_streams.separate = lambda world: None
    name = "torch.random_state" if in_torch() else "keras_common.random_state"
    everywhere(importlib.import_module(f"hvdkit.{name}"), "separate", lambda world: None)
