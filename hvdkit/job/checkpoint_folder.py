"""The folder of a run's checkpoints: tried, claimed and tidied before anything is trained."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os

from hvdkit.errors import CheckpointError
from hvdkit.job.files import stray_files
from hvdkit.process.environment import node_name

_LOCK = ".hvdkit-lock"
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP)
"""Of file systems that have none."""

_claimed: dict[str, int] = {}


def claim(directory: str) -> int:
    """Make a folder this process's own until :func:`release`; on rank 0 alone.

    What a killed job has left half written there is removed.

    Returns:
        How many such files there were.

    Raises:
        CheckpointError: It cannot be written, or another job writes there.
    """
    folder = os.path.realpath(directory)
    if folder in _claimed:
        return 0
    try:
        os.makedirs(folder, exist_ok=True)
        descriptor = os.open(os.path.join(folder, _LOCK), os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise CheckpointError(f"checkpoints cannot be written to {directory}: {error.strerror}") from error
    try:
        _lock(directory, descriptor)
        # which fails on a full disk
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, f"{node_name()}, process {os.getpid()}\n".encode(), 0)
        os.fsync(descriptor)
    except CheckpointError:
        os.close(descriptor)
        raise
    except OSError as error:
        os.close(descriptor)
        raise CheckpointError(f"checkpoints cannot be written to {directory}: {error.strerror}") from error
    _claimed[folder] = descriptor
    strays = stray_files(directory)
    for path in strays:
        with contextlib.suppress(OSError):
            path.unlink()
    return len(strays)


def release(directory: str) -> None:
    """Give a folder up, so that another job may train there; on rank 0 alone."""
    descriptor = _claimed.pop(os.path.realpath(directory), None)
    if descriptor is not None:
        os.close(descriptor)


def _lock(directory: str, descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return
        if not isinstance(error, BlockingIOError):
            raise
        holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip() or "another job"
        raise CheckpointError(
            f"{directory} is in use by a job that runs ({holder}); two jobs in one folder would delete each other's "
            "files: wait for its end, or name another folder"
        ) from None
