"""Atomic files: a reader finds the old file or the new one, never half of one."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hvdkit.errors import CheckpointError
from hvdkit.job.arrays import Arrays

_NAME = re.compile(r"epoch-(\d+)(?:-step-(\d+))?\.\w+")
_STATE = "state.json"


def write_atomically(path: str | Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` fill a temporary file beside ``path``, bring it to disk, and rename it.

    Raises:
        CheckpointError: The folder cannot be written.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(temporary)
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
        folder = os.open(path.parent, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
    except OSError as error:
        raise CheckpointError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def epoch_path(directory: str, epochs: int, suffix: str, step: int | None = None) -> Path:
    """Return the file that is saved after so many epochs, or inside the next one after an update."""
    inside = "" if step is None else f"-step-{step:08d}"
    return Path(directory) / f"epoch-{epochs:04d}{inside}.{suffix}"


def epoch_files(directory: str, suffix: str) -> list[Path]:
    """Return the complete checkpoint files of a folder, oldest first."""
    found = {path: _NAME.fullmatch(path.name) for path in Path(directory).glob(f"epoch-*.{suffix}")}
    places = {path: (int(name[1]), int(name[2] or 0)) for path, name in found.items() if name is not None}
    return sorted(places, key=lambda path: places[path])


def stray_files(directory: str) -> list[Path]:
    """Return what a killed process left half written."""
    return sorted(path for kind in ("epoch-*", "best.*", "manifest.*") for path in Path(directory).glob(f".{kind}.tmp"))


def write_arrays(path: str | Path, arrays: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Write named arrays and JSON-able state as one ``.npz`` file, which plain NumPy opens.

    Raises:
        CheckpointError: The state holds something that JSON cannot, or the file cannot be written.
    """
    try:
        text = json.dumps(state)
    except TypeError as error:
        raise CheckpointError(f"state for {path} must be numbers, strings, lists and dicts: {error}") from error
    content = {**arrays, _STATE: np.frombuffer(text.encode(), np.uint8)}

    def write(temporary: Path) -> None:
        with open(temporary, "wb") as file:
            np.savez(file, **content)

    write_atomically(path, write)


def read_arrays(path: str | Path) -> tuple[Arrays, dict[str, Any]]:
    """Read what :func:`write_arrays` wrote; nothing is unpickled.

    Raises:
        CheckpointError: The file is missing, damaged or of another kind.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            content = {name: file[name] for name in file.files}
        state = json.loads(content.pop(_STATE).tobytes())
    except FileNotFoundError as error:
        raise CheckpointError(f"checkpoint {path} does not exist") from error
    except Exception as error:  # damaged bytes raise nearly anything
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise CheckpointError(f"checkpoint {path} cannot be read: {reason}") from error
    return content, state


@dataclass(frozen=True)
class Saved:
    """A checkpoint that rank 0 has read.

    Attributes:
        path: Its file.
        content: Model and optimizer, as the framework keeps them.
        state: What stands beside them.
    """

    path: str
    content: Any
    state: dict[str, Any]


def batch_for(saved_global_batch: int, size: int, accumulate: int) -> int:
    """Return the per-process batch that keeps a saved global batch.

    Raises:
        CheckpointError: It cannot be divided by the number of processes; the message lists those that divide it.
    """
    batch, rest = divmod(saved_global_batch, size * accumulate)
    if rest or batch == 0:
        fitting = [n for n in range(1, saved_global_batch + 1) if saved_global_batch % (n * accumulate) == 0]
        raise CheckpointError(
            f"the saved run has a global batch of {saved_global_batch}, which {size} processes cannot share; "
            f"resume with one of {', '.join(map(str, fitting[:12]))} processes"
        )
    return batch
