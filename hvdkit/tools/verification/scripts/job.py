"""What all processes of one verification know, and what each of them leaves behind."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hvdkit.tools.verification.storage import Arrays, State, digests

# the runs: the script as it is on all ranks; on one process with whole global batches, once as it is and once with its
# weights moved in the last place; and on one process with the first batch of rank 0, once as it is and once with each
# sample twice; ``plain`` is the script as it would run on one process
RANKS, WHOLE, NUDGED, SINGLE, DOUBLED, PLAIN = "ranks", "whole", "nudged", "single", "doubled", "plain"


@dataclass(frozen=True)
class ScriptJob:
    """One verification of a script.

    Attributes:
        script: The file, by its full path.
        arguments: Its arguments.
        framework: That whose verbs it calls.
        processes: How many ranks there are.
        steps: Updates, about.
        folder: Where everything is kept.
        home: The folder in which the user would start the script.
    """

    script: str
    arguments: list[str]
    framework: str
    processes: int
    steps: int
    folder: str
    home: str

    @property
    def epoch_steps(self) -> int:
        """The most updates that an epoch is given."""
        return max(1, self.steps // 2)

    @property
    def file(self) -> str:
        """Where the processes read it."""
        return f"{self.folder}/job.json"

    def save(self) -> None:
        """Write it for the processes."""
        Path(self.file).write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, file: str) -> ScriptJob:
        """Read it."""
        return cls(**json.loads(Path(file).read_text()))

    def place(self, run: str, rank: int) -> Path:
        """Return the folder of a process."""
        return Path(self.folder) / f"{run}-{rank}"

    def log(self, run: str, rank: int = 0) -> ScriptLog | None:
        """Read what a process has left; None if it was ended before it could write."""
        file = self.place(run, rank) / "log.pickle"
        return pickle.loads(file.read_bytes()) if file.is_file() else None


@dataclass
class Update:
    """One step of an optimizer.

    Attributes:
        number: From 1, over all optimizers; 0 for the state before an optimizer's first step.
        optimizer: Which one, from 0, in the order of their first steps.
        kind: Its class.
        rates: Those of its parameter groups.
        digests: Of its weights (``parameters``) and its state (``slots``).
        file: The arrays themselves.
    """

    number: int
    optimizer: int
    kind: str
    rates: list[float]
    digests: dict[str, dict[str, str]]
    file: str

    def arrays(self, group: str) -> Arrays:
        """Read the arrays of a group."""
        return read_arrays(self.file, group)


@dataclass
class Reduced:
    """One reduction of gradients.

    Attributes:
        count: What this rank's share of the mean is divided by, together with those of the others.
        reduction: ``average`` or ``sum``.
        wire: The kind of number that is sent, such as ``float32`` or ``fp16``.
        file: ``local``: this rank's gradients, times what its samples count for; ``before``: what there was already;
            ``after``: what came out.
    """

    count: float
    reduction: str
    wire: str
    file: str

    def arrays(self, group: str) -> Arrays:
        """Read the arrays of a group."""
        return read_arrays(self.file, group)


@dataclass
class Taken:
    """One batch that ``shard`` gave a rank; the samples themselves lie in ``file``."""

    shard: int
    epoch: int
    number: int
    count: int
    weight: float
    last: bool
    indices: list[int] | None
    digests: list[str]
    file: str


@dataclass
class ScriptLog:
    """All that one process has noted."""

    verbs: list[str] = field(default_factory=list)
    batches: list[Taken] = field(default_factory=list)
    lengths: dict[int, tuple[int | None, int | None]] = field(default_factory=dict)
    samples: dict[int, int | None] = field(default_factory=dict)
    shortened: list[int] = field(default_factory=list)
    starts: list[Update] = field(default_factory=list)
    updates: list[Update] = field(default_factory=list)
    reductions: list[Reduced] = field(default_factory=list)
    averages: list[dict[str, Any]] = field(default_factory=list)
    results: list[tuple[str, Any]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)


def write_arrays(file: str, state: State) -> dict[str, dict[str, str]]:
    """Write groups of arrays; return their digests."""
    flat: Any = {f"{group}|{name}": value for group, arrays in state.items() for name, value in arrays.items()}
    np.savez(file, **flat)
    return digests(state)


def read_arrays(file: str, group: str) -> Arrays:
    """Read the arrays of a group."""
    with np.load(file) as content:
        found: Mapping[str, Any] = {name: content[name] for name in content.files}
    return {name.partition("|")[2]: value for name, value in found.items() if name.partition("|")[0] == group}
