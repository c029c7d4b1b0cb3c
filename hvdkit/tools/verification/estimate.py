"""What the runs will cost."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

from hvdkit.errors import DataError

Say = Callable[[str], None]


def estimate(known: dict[str, Any], size: int, folder: str, say: Say) -> None:
    """Say what the runs will cost, from two steps on one process.

    Raises:
        DataError: The disk cannot hold what they write.
    """
    start, *steps = known["seconds"]
    updates = known["layout"].updates
    # ranks, twice the twin and the whole batches compute all micro-batches, runs that go on three parts of two
    seconds = 3 * start + 5.5 * size * updates * min(steps) + 5 * max(steps)
    disk = updates * ((2.7 * size + 3) * known["state_bytes"] + 2.7 * known["update_bytes"])
    memory = known["memory"] * (size + 1)
    say(
        f"hvdkit: {known['weights']:,} weights; about {seconds:.0f} s, {_size(memory)} of memory, "
        f"{_size(disk)} of disk in {folder}"
    )
    free = shutil.disk_usage(folder).free
    if disk > free:
        raise DataError(f"verify needs {_size(disk)} in {folder}, where {_size(free)} are free; take fewer --steps")


def _size(number: float) -> str:
    return f"{number / 1e9:.1f} GB" if number >= 1e9 else f"{number / 1e6:.1f} MB"
