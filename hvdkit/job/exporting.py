"""Weights alone, as a safetensors file that other tools read."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from hvdkit.errors import CheckpointError
from hvdkit.job import world as worlds
from hvdkit.job.files import write_atomically


def export_on_root(path: str, save: Callable[[Path], None]) -> None:
    """Let rank 0 write a file by safetensors; called by all ranks.

    Args:
        path: Where.
        save: Fills a file.

    Raises:
        CheckpointError: The package safetensors is missing, or the file cannot be written; on every rank.
    """

    def export() -> None:
        if find_spec("safetensors") is None:
            raise CheckpointError("export_weights needs the package safetensors: pip install safetensors")
        write_atomically(path, save)

    worlds.current().root_only(export)
