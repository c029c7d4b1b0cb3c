"""Children that this process forks, such as loader workers: none may find Python's list of threads locked for ever.

CPython before 3.10.15 and 3.11.10 does not renew that lock in a child (gh-112275). A thread of a library takes it for
a moment when it lets go of a tensor, as those of Gloo and of Horovod do behind every collective; a child that is forked
in this moment never runs, and its parent waits for it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from pathlib import Path

# a thread that computes all the time must not hold up every fork
_LIMIT_SECONDS = 0.1
_THREADS = Path("/proc/self/task")
_FIRST_MENDED = {(3, 10): 15, (3, 11): 10}

_is_prepared = False


def prepare_forks() -> None:
    """Fork this process only while no thread of a library runs, where Python needs that; once."""
    global _is_prepared
    if not _is_prepared and sys.version_info[2] < _FIRST_MENDED.get(sys.version_info[:2], 0):
        os.register_at_fork(before=wait_for_threads)
    _is_prepared = True


def wait_for_threads() -> None:
    """Return when no thread that Python has not started is running, or after a tenth of a second."""
    until = time.monotonic() + _LIMIT_SECONDS
    while _some_run() and time.monotonic() < until:
        time.sleep(0.001)


def _some_run() -> bool:
    own = {str(thread.native_id) for thread in threading.enumerate()}
    with contextlib.suppress(OSError):
        return any(_runs(thread) for thread in _THREADS.iterdir() if thread.name not in own)
    return False


def _runs(thread: Path) -> bool:
    try:
        return (thread / "stat").read_text().rpartition(")")[2].split()[0] in "RD"
    except OSError:
        return False
