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

from hvdkit.process.status import OWN_THREADS, status_of

# a thread that computes all the time must not hold up every fork
_LIMIT_SECONDS = 0.1
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
        return any(status_of(thread).state in ("R", "D") for thread in OWN_THREADS.iterdir() if thread.name not in own)
    return False
