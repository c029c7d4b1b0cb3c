"""The random generators of a process that trains with torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from weakref import WeakKeyDictionary

import torch

from hvdkit.job import random_streams
from hvdkit.job.world import World

State = tuple[random_streams.State, torch.Tensor]

# what this rank was seeded with, so that a second broadcast does not seed it again
_own_seeds: WeakKeyDictionary[World, int] = WeakKeyDictionary()


def seed_all(seed: int) -> None:
    """Start the generators of Python, NumPy and torch alike on all ranks."""
    random_streams.seed_python_and_numpy(seed)
    torch.manual_seed(seed)


def separate(world: World) -> None:
    """Give every rank random streams of its own, rank 0 those that it has, once; called by all ranks."""
    random_streams.separate(world)
    if world.rank != 0 and torch.initial_seed() != _own_seeds.get(world):
        _own_seeds[world] = torch.initial_seed() + world.rank
        torch.manual_seed(_own_seeds[world])


def one_random_state() -> AbstractContextManager[None]:
    """Draw the same random numbers on all ranks inside, and go on afterwards as if nothing had been drawn."""
    return RandomState(0).inside()


class RandomState:
    """Generators of Python, NumPy and torch for one purpose, beside those of the process."""

    def __init__(self, seed: int) -> None:
        with self._kept():
            random_streams.seed_python_and_numpy(seed)
            torch.random.default_generator.manual_seed(seed)
            self._state = _read()

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Draw from these generators, and go on afterwards as if nothing had been drawn."""
        with self._kept():
            _write(self._state)
            yield
            self._state = _read()

    @contextmanager
    def _kept(self) -> Iterator[None]:
        state = _read()
        try:
            yield
        finally:
            _write(state)


def _read() -> State:
    return random_streams.read(), torch.get_rng_state()


def _write(state: State) -> None:
    random_streams.write(state[0])
    torch.set_rng_state(state[1])
