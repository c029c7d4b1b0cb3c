"""The random generators of Python and NumPy: one start on all ranks, then a stream for each."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from hvdkit.job.world import World

State = tuple[Any, Any]


def seed_python_and_numpy(seed: int) -> None:
    """Start both generators alike on all ranks, for data and models that draw from them."""
    random.seed(seed)
    np.random.seed(seed % 2**32)


@contextmanager
def one_random_state(seed: int) -> Iterator[None]:
    """Draw the same numbers on all ranks inside, and go on afterwards as if nothing had been drawn."""
    state = read()
    seed_python_and_numpy(seed)
    try:
        yield
    finally:
        write(state)


def read() -> State:
    """Return where both generators stand."""
    return random.getstate(), np.random.get_state()


def write(state: State) -> None:
    """Let both generators go on from where they stood."""
    random.setstate(state[0])
    np.random.set_state(state[1])


def plain() -> dict[str, Any]:
    """Return where both generators stand in numbers and lists, for a file."""
    (version, numbers, gauss), (name, keys, *rest) = read()
    return {"python": [version, list(numbers), gauss], "numpy": [name, keys.tolist(), *rest]}


def write_plain(state: dict[str, Any]) -> None:
    """Let both generators go on from where they stood when :func:`plain` was called."""
    (version, numbers, gauss), (name, keys, *rest) = state["python"], state["numpy"]
    write(((version, tuple(numbers), gauss), (name, np.array(keys, np.uint32), *rest)))


def separate(world: World) -> None:
    """Give ranks whose generators stand at the same place streams of their own; called by all ranks.

    Rank 0 keeps its streams, and so does a rank that was seeded apart by the user.
    """
    mine = [_digest(random.getstate()), _digest(np.random.get_state())]
    first = world.engine.broadcast_object(mine)
    if world.rank == 0:
        return
    if mine[0] == first[0]:
        random.seed(f"{mine[0]} {world.rank}")
    if mine[1] == first[1]:
        np.random.seed([*bytes.fromhex(mine[1])[:16], world.rank])


def _digest(state: object) -> str:
    with np.printoptions(threshold=10_000):
        return hashlib.sha256(repr(state).encode()).hexdigest()
