"""What ranks of ``hvdkit run`` leave in its folder on their way into the job, before they know each other."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from hvdkit.process.environment import failure_dir, launched_as


@dataclass(frozen=True)
class Gate:
    """A place that no rank passes before all have come there.

    Attributes:
        name: Of the files.
        words: For messages.
        ends: Whether a rank that does not come ends the job; behind ``init`` it may be loading its data.
    """

    name: str
    words: str
    ends: bool


INIT = Gate("init", "init()", ends=True)
FIRST_COLLECTIVE = Gate("first", "the first collective", ends=False)


def arrive(gate: Gate) -> None:
    """Note that this rank has come to a gate."""
    _note(f"at-{gate.name}")


def pass_through(gate: Gate) -> None:
    """Note that it is behind it."""
    _note(f"behind-{gate.name}")


def _note(what: str) -> None:
    folder = failure_dir()
    if folder is not None:
        # a folder on the launcher's host only, and perhaps a full one
        with contextlib.suppress(OSError):
            Path(folder, f"{what}-{launched_as().rank}").touch()
