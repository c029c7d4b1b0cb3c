"""Sizes and digests of a folder's files, so that one that was damaged later is found before it is used."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from hvdkit.errors import CheckpointError
from hvdkit.job.files import write_atomically

_MANIFEST = "manifest.json"


def note(path: Path) -> None:
    """Write down a file that was just written, and forget those that are gone; on rank 0 alone.

    Raises:
        CheckpointError: The manifest cannot be written.
    """
    entries = {name: entry for name, entry in _read(path.parent).items() if path.with_name(name).exists()}
    entries[path.name] = {"bytes": path.stat().st_size, "sha256": _digest(path)}
    text = json.dumps(entries, indent=2, sort_keys=True)
    write_atomically(path.with_name(_MANIFEST), lambda file: file.write_text(f"{text}\n"))


def check(path: Path) -> None:
    """Check that a file is still what was written; one that was never written down passes.

    Raises:
        CheckpointError: It is not.
    """
    entry = _read(path.parent).get(path.name)
    if entry is None:
        return
    try:
        size = path.stat().st_size
        if size != entry["bytes"]:
            raise CheckpointError(f"checkpoint {path} is damaged: it has {size} bytes, and had {entry['bytes']}")
        if _digest(path) != entry["sha256"]:
            raise CheckpointError(f"checkpoint {path} is damaged: its sha256 is not that of {_MANIFEST}")
    except OSError as error:
        raise CheckpointError(f"checkpoint {path} cannot be read: {error.strerror}") from error


def _read(folder: Path) -> dict[str, dict[str, Any]]:
    try:
        content = json.loads((folder / _MANIFEST).read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while part := file.read(1 << 20):
            digest.update(part)
    return digest.hexdigest()
