"""Ending what this process started, and nothing else (Linux)."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType

from hvdkit.process.status import PROCESSES, status_of

TIME_IS_UP = signal.SIGUSR1
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


def continue_in_child(caller: int | None) -> None:
    """Return in a child process only; this one passes signals on to it, waits, and exits with its code.

    A job must end whichever process above it is killed. When it is this one, the child is told and ends the job; when
    it is the child, what the child leaves behind comes to this one.

    Args:
        caller: The process that asked for the job and ends it by its own end, if any.
    """
    if caller is not None:
        end_with_parent(signal.SIGTERM, caller)
    adopt_orphans()
    parent, child = os.getpid(), os.fork()
    if child == 0:
        end_with_parent(signal.SIGTERM, parent)
        return
    handle(lambda number, _frame: send_signal(child, number))
    hand_on(lambda number, _frame: send_signal(child, number))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    end_descendants(grace=1.0)
    if code < 0:
        name = signal.Signals(-code).name
        sys.stderr.write(f"hvdkit: error: the process that watches over the job was killed by {name}\n")
    sys.exit(128 - code if code < 0 else code)


def descendants(root: int) -> list[int]:
    """Return the living processes that descend from a process, itself excluded."""
    children: dict[int, list[int]] = {}
    for entry in PROCESSES.glob("[0-9]*"):
        status = status_of(entry)
        if not status.has_ended:
            children.setdefault(status.parent, []).append(int(entry.name))
    found, queue = [], [root]
    while queue:
        for child in children.get(queue.pop(), []):
            found.append(child)
            queue.append(child)
    return found


def is_alive(pid: int) -> bool:
    """Say whether a process exists and has not ended."""
    return not status_of(PROCESSES / str(pid)).has_ended


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


def handle(handler: Callable[[int, FrameType | None], object]) -> None:
    """Let a function handle the signals that end a job, but for those that were ignored before, as under nohup."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, handler)


def hand_on(handler: Callable[[int, FrameType | None], object]) -> None:
    """Let a function handle the signal by which a scheduler says that the time is nearly up."""
    signal.signal(TIME_IS_UP, handler)


def send_signal(pid: int, signum: int) -> None:
    """Send a signal to a process that may be gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signum)
