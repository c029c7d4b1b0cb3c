"""What a rank does when its script raises: say so in one place, tell the other ranks, and leave."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import ClassVar, NoReturn, Protocol

from hvdkit.errors import HvdkitError, RankFailedError
from hvdkit.process.environment import failure_dir, launched_as

AGAIN = 75
"""The exit code of a job that has saved and is to be started again (sysexits.h: EX_TEMPFAIL)."""

WORK_SECONDS = 3.0
_FRAME = re.compile(r'\s*File ".*", line \d+')


class Announcer(Protocol):
    """Whatever can tell the other ranks that this one has failed."""

    def fail(self, message: str) -> None:
        """Tell all ranks."""

    def give_way(self) -> None:
        """Let another rank be named that has failed first."""

    def stand_down(self) -> bool:
        """Leave the end of this process to its own failure; False if another rank's is ending it already."""


class _Here:
    """This process, as far as a failure needs to know it."""

    rank: int | None = None
    announcer: Announcer | None = None
    cause: HvdkitError | None = None
    gave_way = False
    recording = threading.Lock()
    work: ClassVar[set[Callable[[float], None]]] = set()


def announce_on(rank: int, announcer: Announcer | None) -> None:
    """Note this process's rank, and the channel on which its peers hear of a failure."""
    _Here.rank, _Here.announcer = rank, announcer


def begin_work(wait: Callable[[float], None]) -> None:
    """Note work beside the script: a rank that ends early waits for it, given the seconds that it has."""
    _Here.work.add(wait)


def end_work(wait: Callable[[float], None]) -> None:
    """Note that it is done."""
    _Here.work.discard(wait)


def finish_work(seconds: float) -> None:
    """Wait for work that is under way, for so long at most."""
    for wait in tuple(_Here.work):
        wait(seconds)


def note_cause(error: HvdkitError) -> None:
    """Remember an error that a framework is about to wrap in one of its own, to show it instead of that one."""
    _Here.cause = error


def watch_exceptions() -> None:
    """End this rank, and tell its peers, when an exception reaches the top of the script."""
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _excepthook


def _excepthook(_kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    cause = _Here.cause
    if cause is not None and not isinstance(error, HvdkitError) and str(cause) in str(error):
        leave(cause)
    leave(error.with_traceback(trace))


def describe(error: BaseException) -> str:
    """Return an exception as one line; hvdkit's own without the class name."""
    text = " ".join(_without_stacks(str(error)).split())
    if isinstance(error, HvdkitError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _without_stacks(text: str) -> str:
    """Leave out the stacks that loader workers and TensorFlow put into the texts of errors."""
    kept: list[str] = []
    frame: int | None = None
    for line in text.splitlines():
        depth = len(line) - len(line.lstrip())
        if frame is not None and (depth > frame or not line.strip()):
            continue
        frame = depth if _FRAME.match(line) else None
        if frame is None and "(most recent call last)" not in line:
            kept.append(line)
    return "\n".join(kept) or text


def last_words(text: str, rank: int) -> str:
    """Return the line with which a rank ends because of what a text says, mostly of another rank."""
    own = text.startswith(f"rank {rank} failed")
    return f"hvdkit: error: {text}\n" if own else f"hvdkit: error: {text}; rank {rank} ends too\n"


def give_way() -> None:
    """Wait a moment, once, if another rank may be the cause of an error here: it is named then, and ends this one."""
    if _Here.announcer is not None and not _Here.gave_way:
        _Here.gave_way = True
        _Here.announcer.give_way()


def leave(error: BaseException) -> NoReturn:
    """Show an error, record it, tell the other ranks, and end this process without waiting for anybody."""
    if _Here.announcer is not None:
        give_way()
        # ranks often fail at the same time: another's failure must not be shown, or recorded, over this one
        if not _Here.announcer.stand_down():
            # the control channel's thread is about to end this process
            time.sleep(60)
    # torch.distributed wraps the hook and holds back what it writes to sys.stderr until it returns, which it never does
    stream = sys.__stderr__ or sys.stderr
    if isinstance(error, HvdkitError):
        stream.write(f"hvdkit: error: {describe(error)}\n")
    else:
        traceback.print_exception(error, file=stream)
    stream.flush()
    code = 130 if isinstance(error, KeyboardInterrupt) else 1
    record(describe(error), code, secondary=isinstance(error, RankFailedError), error=error)
    if _Here.announcer is not None and not isinstance(error, RankFailedError):
        _Here.announcer.fail(describe(error))
    finish_work(WORK_SECONDS)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def record(
    message: str, code: int, *, secondary: bool, error: BaseException | None = None, rank: int | None = None
) -> None:
    """Write this rank's failure where ``hvdkit run`` looks for it; nothing happens under other launchers.

    The script and the control channel's thread may call this at the same time. What another rank's failure caused does
    not replace what is recorded already.

    Args:
        message: One line.
        code: The exit code of this rank.
        secondary: Whether another rank's failure came first.
        error: The exception, for its class and traceback.
        rank: This process's; None for the one that it joined the job with, or else what its launcher says.
    """
    folder = failure_dir()
    if folder is None:
        return
    if rank is None:
        rank = _Here.rank if _Here.rank is not None else launched_as().rank
    path = Path(folder) / f"failure-{rank}.json"
    whose = error.rank if isinstance(error, HvdkitError) else None
    entry = {
        "rank": rank if whose is None else whose,
        "time": time.time(),
        "code": code,
        "class": type(error).__name__ if error is not None else "",
        "message": message,
        "traceback": "".join(traceback.format_exception(error)) if error is not None else "",
        "pid": os.getpid(),
        "secondary": secondary,
    }
    # where it cannot be written, the rank must end all the same
    with _Here.recording, contextlib.suppress(OSError):
        if secondary and path.exists():
            return
        with contextlib.suppress(FileExistsError):
            # a cleaner of temporary folders may have removed it
            os.mkdir(folder, 0o700)
        temporary = path.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
        temporary.write_text(json.dumps(entry))
        temporary.rename(path)
