"""Looks whether all ranks hold the same weights, and says which step of a script was probably forgotten."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvdkit.errors import ModelError
from hvdkit.job.world import World

# updates between two looks
EVERY = 200

NOT_BROADCAST = "call broadcast(model, optimizer) before the first step"
CHANGED_LATER = (
    "something changed them on some ranks only, such as gradients that nobody averaged (call distribute), or weights "
    "that were drawn or loaded anew (call broadcast after that)"
)


class DriftGuard:
    """Compares digests of weights over ranks before an optimizer's first update, after it, and now and then.

    Attributes:
        updates: Those that were seen.
    """

    def __init__(self, world: World, forgotten: str) -> None:
        self._world = world
        self._forgotten = forgotten
        self.updates = 0

    @property
    def is_due(self) -> bool:
        """Whether the weights should be looked at after this update."""
        return self.updates == 1 or self.updates % EVERY == 0

    def look(self, names: Sequence[str], digests: Sequence[int], local: Sequence[int] = ()) -> None:
        """Compare; called by all ranks.

        Args:
            names: Those of the weights.
            digests: A signed 64-bit integer for each.
            local: The same of what should differ, gradients before they are averaged; 0 where there are none.

        Raises:
            ModelError: The weights differ; on every rank, naming the first one and the ranks.
        """
        mine = np.array([*digests, *local], np.int64)
        lowest, inverted = np.split(self._world.allreduce(np.concatenate([mine, ~mine]), "min"), 2)
        differs = lowest != ~inverted
        if local and mine[len(names) :].all() and not differs[len(names) :].any() and self._world.is_root:
            print(
                "hvdkit: all ranks had the same gradients in the first update; do they train on the same samples? "
                "hvdkit's shard(...) gives every rank its own",
                file=sys.stderr,
            )
        different = np.flatnonzero(differs[: len(names)])
        if not len(different):
            return
        first = int(different[0])
        held = self._world.allgather(mine[first : first + 1])
        when = f"after {self.updates} updates" if self.updates else "before the first update"
        raise _apart(when, names[first], list(held), self._advice())

    def _advice(self) -> str:
        if self.updates == 0:
            return f"{NOT_BROADCAST}, and build the model alike on all ranks"
        return self._forgotten


def check_used(world: World, names: Sequence[str], digests: Sequence[int], advice: str) -> None:
    """Refuse weights that differ between ranks where one rank's are taken for those of all; called by all ranks.

    Args:
        world: The job.
        names: Those of the weights.
        digests: A number for each.
        advice: What was probably forgotten.

    Raises:
        ModelError: The weights differ; on every rank, naming the first one and the ranks.
    """
    if len(set(world.engine.allgather_object(hash(tuple(digests))))) == 1:
        return
    gathered = world.engine.allgather_object((list(names), list(digests)))
    columns = itertools.zip_longest(gathered[0][0], *(each for _, each in gathered), fillvalue="missing")
    name, *held = next(column for column in columns if len(set(column[1:])) > 1)
    raise _apart("when they are used", name, held, advice)


def _apart(when: str, name: str, held: Sequence[Any], advice: str) -> ModelError:
    others = [str(rank) for rank in range(1, len(held)) if held[rank] != held[0]]
    return ModelError(
        f"the weights differ between ranks {when}: {name!r} on rank 0 is not that on rank{'s' * (len(others) > 1)} "
        f"{', '.join(others)}; {advice} (init(guard=False) lets ranks train apart)"
    )


def sum_of_bits(array: NDArray[Any]) -> int:
    """Return the sum of an array's elements, their bits taken for whole numbers: another if one element changes."""
    words = np.ascontiguousarray(array).reshape(-1).view(f"u{min(array.itemsize, 8)}")
    return int(words.sum(dtype=np.uint64).astype(np.int64))
