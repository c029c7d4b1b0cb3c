"""The random generators of a process that trains with torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
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


def generators_of(model: torch.nn.Module) -> Iterator[tuple[str, torch.Generator]]:
    """Yield the generators that modules keep as attributes."""
    for name, module in model.named_modules():
        for key, value in vars(module).items():
            if isinstance(value, torch.Generator):
                yield f"{name}.{key}", value


def read_random_state(model: torch.nn.Module) -> dict[str, Any]:
    """Return where generators stand, for a file: those of Python, NumPy, torch, this GPU and the model's modules."""
    kept = {name: generator.get_state() for name, generator in generators_of(model)}
    state = {**random_streams.plain(), "torch": torch.get_rng_state(), "modules": kept}
    return {**state, "cuda": torch.cuda.get_rng_state()} if torch.cuda.is_available() else state


def write_random_state(model: torch.nn.Module, state: dict[str, Any]) -> None:
    """Let this process's generators go on from where they stood."""
    random_streams.write_plain(state)
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
    for name, generator in generators_of(model):
        if name in state["modules"]:
            generator.set_state(state["modules"][name])


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
