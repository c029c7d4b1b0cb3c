"""What the runs will cost."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

from hvdkit.errors import DataError
from hvdkit.tools.verification.layout import Layout
from hvdkit.tools.verification.replays import replays
from hvdkit.tools.verification.resuming import resumed_updates

Say = Callable[[str], None]

_STARTS, _FIRST, _REST = 4.0, 5.0, 1.35
"""Starts and first steps, as if one after another; what a pass costs with its share of evaluation and notes (all were
measured on two cores)."""

_FILES, _READ = 3, 1.3
"""Files with all weights that are there at once; what is read, with evaluation."""


def estimate(known: dict[str, Any], framework: str, folder: str, say: Say) -> None:
    """Say what the runs will cost, from some steps on one process.

    Raises:
        DataError: The disk cannot hold what they write.
    """
    start, *steps = known["seconds"]
    layout: Layout = known["layout"]
    replayed, resumed = replays(framework, layout, known), resumed_updates(layout)
    passes = layout.size * (layout.updates + sum(replayed.values()) + resumed)
    seconds = _STARTS * start + _FIRST * max(steps) + _REST * min(steps) * passes
    notes = layout.size * (layout.updates + resumed) + sum(replayed.values())
    files = _FILES * (known["weight_bytes"] + known["slot_bytes"]) + known["weight_bytes"]
    disk = notes * known["state_bytes"] + _READ * layout.updates * known["update_bytes"] + files
    memory = known["memory"] * (layout.size + 1)
    say(
        f"hvdkit: {known['weights']:,} weights; about {seconds:.0f} s, {_size(memory)} of memory, "
        f"{_size(disk)} of disk in {folder}"
    )
    free = shutil.disk_usage(folder).free
    if disk > free:
        raise DataError(f"verify needs {_size(disk)} in {folder}, where {_size(free)} are free; take fewer --steps")


def _size(number: float) -> str:
    return f"{number / 1e9:.1f} GB" if number >= 1e9 else f"{number / 1e6:.1f} MB"
