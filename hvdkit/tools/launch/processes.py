"""Ending what this process started, and nothing else (Linux)."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def end_with_parent(signum: signal.Signals, parent: int | None = None) -> None:
    """Let the kernel send this process a signal when its parent ends.

    Args:
        signum: The signal.
        parent: The expected parent; if it is gone already, the signal comes at once.
    """
    _LIBC.prctl(_PR_SET_PDEATHSIG, int(signum), 0, 0, 0)
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), signum)


def adopt_orphans() -> None:
    """Make descendants whose parent ends children of this process, so that it can still find and end them."""
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(root: int) -> list[int]:
    """Return the living processes that descend from a process, itself excluded."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # the name in parentheses may hold blanks
            state, parent = stat.read_text(errors="replace").rpartition(")")[2].split()[:2]
            if state not in "ZX":
                children.setdefault(int(parent), []).append(int(stat.parent.name))
    found, queue = [], [root]
    while queue:
        for child in children.get(queue.pop(), []):
            found.append(child)
            queue.append(child)
    return found


def is_alive(pid: int) -> bool:
    """Say whether a process exists and has not ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def end_descendants(grace: float) -> None:
    """End every descendant of this process: SIGTERM, and SIGKILL for what is left.

    Args:
        grace: Seconds between the two.
    """
    for signum, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, 5.0)):
        deadline = time.monotonic() + seconds
        signalled: set[int] = set()
        while alive := descendants(os.getpid()):
            for pid in set(alive) - signalled:
                send_signal(pid, signum)
                signalled.add(pid)
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)


def send_signal(pid: int, signum: int) -> None:
    """Send a signal to a process that may be gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signum)
