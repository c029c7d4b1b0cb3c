"""What a process or a thread is doing, as the kernel says."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

PROCESSES = Path("/proc")
OWN_THREADS = PROCESSES / "self" / "task"


class Status(NamedTuple):
    """What proc_pid_stat(5) tells.

    Attributes:
        state: One letter.
        parent: The number of the parent process.
    """

    state: str
    parent: int

    @property
    def has_ended(self) -> bool:
        """Whether it is gone, or waits for its parent to notice."""
        return self.state in ("Z", "X")


def status_of(entry: Path) -> Status:
    """Return the status of an entry of ``PROCESSES`` or ``OWN_THREADS``; state ``X`` where there is none."""
    try:
        # names may hold anything, brackets and bytes that are no text among them
        fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return Status("X", 0)
    return Status(fields[0], int(fields[1]))
