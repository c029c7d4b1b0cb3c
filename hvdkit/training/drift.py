"""Looks whether all ranks hold the same weights, and says which step of a script was probably forgotten."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvdkit.errors import ModelError
from hvdkit.job.world import World

# updates between two looks
EVERY = 200


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
        others = [str(rank) for rank in range(1, self._world.size) if held[rank] != held[0]]
        when = f"after {self.updates} updates" if self.updates else "before the first update"
        raise ModelError(
            f"the weights differ between ranks {when}: {names[first]!r} on rank 0 is not that on "
            f"rank{'s' * (len(others) > 1)} {', '.join(others)}; {self._advice()} "
            "(init(guard=False) lets ranks train apart)"
        )

    def _advice(self) -> str:
        if self.updates == 0:
            return "call broadcast(model, optimizer) before the first step, and build the model alike on all ranks"
        return self._forgotten


def sum_of_bits(array: NDArray[Any]) -> int:
    """Return the sum of an array's elements, their bits taken for whole numbers: another if one element changes."""
    words = np.ascontiguousarray(array).reshape(-1).view(f"u{min(array.itemsize, 8)}")
    return int(words.sum(dtype=np.uint64).astype(np.int64))
