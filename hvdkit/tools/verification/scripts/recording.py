"""Notes, in the process that runs the script, what its verbs and optimizers do."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from typing import Any

import numpy as np

from hvdkit.recipe.trees import leaves
from hvdkit.tools.verification.scripts.job import (
    RANKS,
    Reduced,
    ScriptJob,
    ScriptLog,
    Taken,
    Update,
    write_arrays,
)
from hvdkit.tools.verification.storage import State, digest
from hvdkit.training.batch import Batch

# a script that goes on for longer is ended, and what follows its training is not seen
_MARGIN = 30
# optimizers that step at the same batch make this many notes for each
_OPTIMIZERS = 4


class Enough(BaseException):
    """Ends a script that would train for too long; no script catches it by accident."""


class Recorder:
    """The notes of one process.

    Attributes:
        job: What is verified.
        run: Which of the runs this is.
        rank: This process.
        log: The notes so far.
        weight: What the samples of the current batch count for.
    """

    def __init__(self, job: ScriptJob, run: str, rank: int) -> None:
        self.job, self.run, self.rank = job, run, rank
        self.log = ScriptLog()
        self.weight = 1.0
        self._folder = job.place(run, rank)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._random = ""

    @property
    def on_ranks(self) -> bool:
        """Whether this is one of several ranks."""
        return self.run == RANKS

    @property
    def keeps(self) -> bool:
        """Whether there is room for another update."""
        return len(self.log.updates) < _OPTIMIZERS * self.job.steps

    def batch(self, shard: int, batch: Batch, random: str) -> None:
        """Note a batch that the script is about to get, and the state of the random generators."""
        self.weight, self._random = batch.weight, random
        if not self.on_ranks or len(self.log.batches) > _OPTIMIZERS * self.job.steps * 2:
            return
        file = f"{self._folder}/batch-{len(self.log.batches)}.pickle"
        with open(file, "wb") as target:
            pickle.dump(_tree(batch), target)
        indices = None if batch.indices is None else [int(index) for index in batch.indices]
        self.log.batches.append(
            Taken(
                shard,
                batch.epoch,
                batch.number,
                batch.count,
                batch.weight,
                batch.last,
                indices,
                _row_digests(_tree(batch)),
                file,
            )
        )

    def drawn(self, random: str) -> None:
        """Note whether random numbers were drawn since the batch came."""
        if self._random and random != self._random:
            self.log.facts["random"] = True

    def start(self, optimizer: int, kind: str, rates: list[float], state: State) -> None:
        """Note the state before an optimizer's first step."""
        file = f"{self._folder}/start-{optimizer}.npz"
        self.log.starts.append(Update(0, optimizer, kind, rates, write_arrays(file, state), file))

    def update(self, optimizer: int, kind: str, rates: list[float], state: State) -> None:
        """Note a step of an optimizer."""
        number = len(self.log.updates) + 1
        file = f"{self._folder}/update-{number}.npz"
        self.log.updates.append(Update(number, optimizer, kind, rates, write_arrays(file, state), file))

    def check_end(self, steps: int) -> None:
        """End the script if an optimizer has made many more steps than were asked for.

        Raises:
            Enough: It has.
        """
        limit = self.job.steps + _MARGIN if self.log.lengths else self.job.steps
        if steps >= limit:
            self.log.facts["ended"] = True
            raise Enough

    def reduced(self, count: float, reduction: str, wire: str, state: State) -> None:
        """Note a reduction of gradients."""
        if len(self.log.reductions) < 2 * self.job.steps:
            file = f"{self._folder}/reduced-{len(self.log.reductions)}.npz"
            write_arrays(file, state)
            self.log.reductions.append(Reduced(count, reduction, wire, file))

    def save(self) -> None:
        """Write the notes."""
        (self._folder / "log.pickle").write_bytes(pickle.dumps(self.log))


def _tree(batch: Batch) -> Any:
    given = batch.given
    return tuple(given) if given is batch else given


def _row_digests(tree: Any) -> list[str]:
    """Return a digest of each sample; of nothing where the parts are no arrays of one length."""
    try:
        parts = [np.asarray(leaf) for leaf in leaves(tree)]
        length = len(parts[0])
        if any(len(part) != length for part in parts):
            return []
        return ["".join(digest(np.asarray(part[row])) for part in parts) for row in range(length)]
    except (TypeError, ValueError, IndexError, RuntimeError):
        return []


def digest_of(tree: Any) -> str:
    """Return a digest of a tree of arrays."""
    return " ".join(digest(np.asarray(leaf)) for leaf in leaves(tree))


def joined(parts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return dicts as one."""
    return {name: value for part in parts for name, value in part.items()}
