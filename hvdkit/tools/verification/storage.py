"""Runs on disk: one folder for each process, read back with NumPy alone."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]
State = dict[str, Arrays]
"""Named arrays in groups: ``parameters``, ``statistics`` (per rank, such as BatchNorm's) and ``slots``."""


@dataclass(frozen=True)
class Micro:
    """One forward and backward pass of one rank.

    Attributes:
        update: The update that it belongs to, from 1.
        epoch: Its epoch, from 0.
        count: The samples that it stands for, 0 for a repeated one.
        weight: What the shard said its mean loss counts for; None where the framework shows none.
        samples: A digest of each sample.
        file: Its arrays.
    """

    update: int
    epoch: int
    count: int
    weight: float | None
    samples: list[str]
    file: str

    def arrays(self) -> Arrays:
        """Return inputs ``x``, targets ``y``, and a random state if there is one."""
        with np.load(self.file) as content:
            arrays = {name: content[name] for name in content.files}
        order = arrays.pop("order").tolist()
        return {**arrays, "x": arrays["x"].transpose(np.argsort(order))}


@dataclass(frozen=True)
class Snapshot:
    """The state of one process after an update; update 0 is the start."""

    update: int
    rate: float
    digests: dict[str, dict[str, str]]
    file: str

    def arrays(self, group: str) -> Arrays:
        """Return the arrays of a group."""
        with np.load(self.file) as content:
            return {name.partition("|")[2]: content[name] for name in content.files if name.partition("|")[0] == group}


@dataclass
class Log:
    """All that one process has noted; ``facts`` are numbers, names and averaged metrics."""

    folder: str
    snapshots: list[Snapshot] = field(default_factory=list)
    micros: list[Micro] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        Path(self.folder).mkdir(parents=True, exist_ok=True)

    def add_snapshot(self, update: int, rate: float, state: State) -> None:
        """Write the state after an update."""
        file = f"{self.folder}/update-{update}.npz"
        flat: Any = {f"{group}|{name}": value for group, arrays in state.items() for name, value in arrays.items()}
        np.savez(file, **flat)
        self.snapshots.append(Snapshot(update, rate, digests(state), file))

    def add_micro(self, x: NDArray[Any], y: NDArray[Any], extra: Mapping[str, Any], **notes: Any) -> None:
        """Write a micro-batch; the order of the axes of ``x`` in memory is kept."""
        file = f"{self.folder}/batch-{len(self.micros)}.npz"
        order = axes_in_memory(x)
        kept: Any = {"x": np.ascontiguousarray(x.transpose(order)), "y": y, "order": np.array(order), **extra}
        np.savez(file, **kept)
        self.micros.append(Micro(file=file, **notes))

    def save(self) -> None:
        """Write the log itself."""
        (Path(self.folder) / "log.json").write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, folder: str) -> Log:
        """Read what a process has saved."""
        content = json.loads((Path(folder) / "log.json").read_text())
        return cls(
            folder,
            [Snapshot(**entry) for entry in content["snapshots"]],
            [Micro(**entry) for entry in content["micros"]],
            content["facts"],
        )

    def at(self, update: int) -> Snapshot:
        """Return the state after an update."""
        return next(entry for entry in self.snapshots if entry.update == update)


def axes_in_memory(x: NDArray[Any]) -> list[int]:
    """Return the axes from the outermost to the innermost; frameworks choose their kernels by this order."""
    return sorted(range(x.ndim), key=lambda axis: (-x.strides[axis], x.shape[axis] == 1))


def digests(state: State) -> dict[str, dict[str, str]]:
    """Return one digest for each array."""
    return {group: {name: digest(value) for name, value in arrays.items()} for group, arrays in state.items()}


def digest(value: NDArray[Any]) -> str:
    """Return a digest of an array's dtype, shape and bytes."""
    head = f"{value.dtype} {value.shape}".encode()
    return hashlib.blake2b(head + np.ascontiguousarray(value).tobytes(), digest_size=12).hexdigest()


def sample_digests(x: NDArray[Any], y: NDArray[Any]) -> list[str]:
    """Return one digest for each sample with its target, the same in every framework."""
    return [digest(x[i]) + digest(np.asarray(y[i], np.float64)) for i in range(len(x))]
