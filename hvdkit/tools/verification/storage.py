"""Runs on disk: one folder for each process, read back with NumPy alone."""

from __future__ import annotations

import hashlib
import json
import pickle
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hvdkit.recipe.trees import is_branch, leaves, map_tree
from hvdkit.tools.verification.sketches import single, sketch

Arrays = dict[str, NDArray[Any]]
State = dict[str, Arrays]
"""Named arrays in groups: ``parameters``, ``statistics`` (per rank, such as BatchNorm's) and ``slots``."""


CHECKPOINTS = "checkpoints"
"""The folder of the files that are saved behind epochs, beside the logs."""

_START = "start"

Draws = dict[str, Any]
"""Where each random generator that a pass may draw from stands, by the generator's name; to be pickled."""


class Pass(NamedTuple):
    """What one forward and backward pass was given.

    Attributes:
        inputs, targets: Trees of NumPy arrays.
        draws: Where the random generators stood.
    """

    inputs: Any
    targets: Any
    draws: Draws


@dataclass(frozen=True)
class Micro:
    """One forward and backward pass of one rank.

    Attributes:
        update: The update that it belongs to, from 1.
        epoch: Its epoch, from 0.
        count: The samples that it stands for, 0 for a repeated one.
        weight: What the shard said its mean loss counts for; None where the framework shows none.
        samples: A digest of each sample.
        file: Its arrays; empty where nobody asks for them.
        indices: Which samples they are, where hvdkit draws them.
    """

    update: int
    epoch: int
    count: int
    weight: float | None
    samples: list[str]
    file: str
    indices: list[int] | None = None

    def load(self) -> Pass:
        """Return what the pass was given."""
        with Path(self.file).open("rb") as file:
            inputs, targets, draws = pickle.load(file)
        return Pass(map_tree(_as_it_lay, inputs), map_tree(_as_it_lay, targets), draws)


@dataclass(frozen=True)
class Snapshot:
    """The state of one process after an update; update 0 is the start.

    Attributes:
        update: The update.
        rates: The learning rate of each of the optimizer's groups of parameters.
        generators: A digest of where each random generator stands, by name.
        digests: A digest of each array, by group and name.
        file: The arrays.
    """

    update: int
    rates: list[float]
    generators: dict[str, str]
    digests: dict[str, dict[str, str]]
    file: str

    @property
    def rate(self) -> float:
        """The learning rate of the first group."""
        return self.rates[0]

    def arrays(self, group: str) -> Arrays:
        """Return the arrays of a group, large ones as sketches, which keep distances."""
        return _read(self.file, group)


@dataclass
class Log:
    """All that one process has noted.

    Attributes:
        folder: Where it lies.
        snapshots: The state after every update.
        micros: What every pass was given.
        facts: Numbers, names and averaged metrics.
        ends: Statistics after every epoch.
        evaluated: What was evaluated, at the end of which epoch (from 0).
    """

    folder: str
    snapshots: list[Snapshot] = field(default_factory=list)
    micros: list[Micro] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    ends: list[Snapshot] = field(default_factory=list)
    evaluated: list[Micro] = field(default_factory=list)

    def __post_init__(self) -> None:
        Path(self.folder).mkdir(parents=True, exist_ok=True)

    def add_snapshot(self, update: int, rates: list[float], draws: Draws, state: State) -> None:
        """Write the state after an update."""
        generators = places(draws)
        file = self._write(f"update-{update}", sketches(state))
        self.snapshots.append(Snapshot(update, rates, generators, digests(state), file))

    def add_end(self, update: int, statistics: Arrays) -> None:
        """Write the statistics after an epoch, whose last update this was."""
        state = {"statistics": statistics}
        self.ends.append(Snapshot(update, [], {}, digests(state), self._write(f"end-{update}", sketches(state))))

    def _write(self, name: str, state: State) -> str:
        file = f"{self.folder}/{name}.npz"
        flat: Any = {f"{group}|{name}": value for group, arrays in state.items() for name, value in arrays.items()}
        np.savez(file, **flat)
        return file

    def keep_start(self, state: State) -> None:
        """Write the state before the first update, whole."""
        self._write(_START, state)

    def start(self, group: str) -> Arrays:
        """Return the arrays of a group before the first update, whole."""
        return _read(f"{self.folder}/{_START}.npz", group)

    def add_micro(self, passed: Pass | None, **notes: Any) -> None:
        """Write what a pass was given, unless it is None; how the axes of arrays lie in memory is kept."""
        self.micros.append(_written(f"{self.folder}/batch-{len(self.micros)}.pickle", passed, notes))

    def add_evaluated(self, passed: Pass | None, **notes: Any) -> None:
        """Write a batch that was evaluated, unless it is None."""
        self.evaluated.append(_written(f"{self.folder}/evaluated-{len(self.evaluated)}.pickle", passed, notes))

    def keep_draws(self, epoch: int, draws: Draws) -> None:
        """Write where the random generators stood when an epoch began."""
        self._draws_file(epoch).write_bytes(pickle.dumps(draws))

    def draws_at(self, epoch: int) -> Draws:
        """Return where the random generators stood when an epoch began."""
        draws: Draws = pickle.loads(self._draws_file(epoch).read_bytes())
        return draws

    def _draws_file(self, epoch: int) -> Path:
        return Path(self.folder, f"draws-{epoch}.pickle")

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
            [Snapshot(**entry) for entry in content["ends"]],
            [Micro(**entry) for entry in content["evaluated"]],
        )

    def at(self, update: int) -> Snapshot:
        """Return the state after an update."""
        return next(entry for entry in self.snapshots if entry.update == update)


def epoch_files(folder: str) -> list[Path]:
    """Return the files that were saved behind epochs, the earliest first."""
    return sorted(Path(folder).glob("epoch-*"), key=epoch_of)


def epoch_of(path: Path) -> int:
    """Return the epoch (from 1) behind which a file was saved."""
    return int(path.stem.split("-")[1])


def sketches(state: State) -> State:
    """Return a state with large arrays as sketches."""
    return {group: {name: sketch(value) for name, value in arrays.items()} for group, arrays in state.items()}


def _read(file: str, group: str) -> Arrays:
    with np.load(file) as content:
        return {name.partition("|")[2]: content[name] for name in content.files if name.partition("|")[0] == group}


def _written(file: str, passed: Pass | None, notes: dict[str, Any]) -> Micro:
    if passed is None:
        return Micro(file="", **notes)
    with Path(file).open("wb") as out:
        pickle.dump((map_tree(_Laid, passed.inputs), map_tree(_Laid, passed.targets), passed.draws), out)
    return Micro(file=file, **notes)


class _Laid:
    """An array and the order of its axes in memory, since frameworks choose their kernels by it."""

    ndim = 1  # by which a tuple or list of them is known for a tree

    def __init__(self, array: Any) -> None:
        array = np.asarray(array)
        self.order = axes_in_memory(array)
        self.content = np.ascontiguousarray(array.transpose(self.order))
        # trees know by it that it stands for an array
        self.ndim = max(1, array.ndim)


def _as_it_lay(laid: _Laid) -> NDArray[Any]:
    array: NDArray[Any] = laid.content.transpose(np.argsort(laid.order))
    return array


def axes_in_memory(x: NDArray[Any]) -> list[int]:
    """Return the axes from the outermost to the innermost; frameworks choose their kernels by this order."""
    return sorted(range(x.ndim), key=lambda axis: (-x.strides[axis], x.shape[axis] == 1))


def digests(state: State) -> dict[str, dict[str, str]]:
    """Return one digest for each array."""
    return {group: {name: digest(value) for name, value in arrays.items()} for group, arrays in state.items()}


def digest(value: NDArray[Any]) -> str:
    """Return a digest of an array's dtype, shape and bytes."""
    if value.dtype == object:  # strings
        value = np.asarray(value.tolist(), "S")
    head = f"{value.dtype} {value.shape}".encode()
    return hashlib.blake2b(head + np.ascontiguousarray(value).tobytes(), digest_size=12).hexdigest()


def sample_digests(inputs: Any, targets: Any) -> list[str]:
    """Return one digest for each sample with its target, the same in every framework."""
    inputs, targets = (map(single, leaves(_in_order(tree))) for tree in (inputs, targets))
    columns = [*inputs, *(np.asarray(leaf, np.float64) for leaf in targets)]
    return ["".join(digest(np.asarray(column[i])) for column in columns) for i in range(len(columns[0]))]


def _in_order(tree: Any) -> Any:
    """Return a tree whose dicts are sorted, as they are in a step that JAX has compiled."""
    if isinstance(tree, dict):
        return {name: _in_order(tree[name]) for name in sorted(tree, key=str)}
    return [_in_order(part) for part in tree] if is_branch(tree) else tree


def places(draws: Draws) -> dict[str, str]:
    """Return a digest of where each generator stands, by name."""
    return {name: _digest_of(place) for name, place in draws.items()}


def _digest_of(place: Any) -> str:
    return hashlib.blake2b(pickle.dumps(place), digest_size=12).hexdigest()
