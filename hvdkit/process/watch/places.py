"""Where a rank's script is, asked without its interpreter: a signal makes C code write down the stack."""

from __future__ import annotations

import os
import re
import signal
import sysconfig
from pathlib import Path
from typing import NamedTuple

from hvdkit.process.status import PROCESSES, status_of
from hvdkit.process.watch.judge import STOPPED

SIGNAL = signal.SIGRTMIN + 9

_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<name>.*)$')
_PACKAGE = str(Path(__file__).parents[2])
_NOT_THE_USERS = re.compile("site-packages|__autograph_generated_file")
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


class Place(NamedTuple):
    """Where a rank is.

    Attributes:
        words: To follow "rank 1 is".
        stack: All frames of its main thread; two that are the same mean that it has not moved.
    """

    words: str
    stack: str


def stack_file() -> int:
    """Return a file in memory into which this process writes its stack at ``SIGNAL``."""
    import faulthandler

    descriptor = os.memfd_create("hvdkit-stack")
    faulthandler.register(SIGNAL, file=descriptor, all_threads=True, chain=False)
    return descriptor


class Whereabouts:
    """Finds out where the watched process is.

    Args:
        process: Its id.
        descriptor: Of the file into which it writes its stack.
    """

    def __init__(self, process: int, descriptor: int) -> None:
        self._process, self._descriptor = process, descriptor
        self._read = self._written = 0
        self._asked = False

    def ask(self) -> Place | None:
        """Ask for the stack; return the place at once if the process cannot answer."""
        if status_of(PROCESSES / str(self._process)).state in "Tt":
            return Place(STOPPED, "stopped")
        if not self._asked:
            self._asked = True
            self._read = os.fstat(self._descriptor).st_size
            os.kill(self._process, SIGNAL)
        return None

    def answer(self) -> Place | None:
        """Return what it has answered; None as long as that is nothing, or may not be all."""
        written, self._written = self._written, os.fstat(self._descriptor).st_size
        text = os.pread(self._descriptor, 1 << 20, self._read).decode(errors="replace")
        # a script's outermost frame is a module's, written last; other stacks are whole if they grow no more
        if not text or not (text.endswith(" in <module>\n") or self._written == written):
            return None
        self._asked = False
        return place_in(text)


def place_in(text: str) -> Place:
    """Return the place of the main thread in what faulthandler has written, which names it last."""
    frames = [found for line in _main_thread(text) if (found := _FRAME.match(line))]
    if not frames:
        return Place("in code that is not Python's", text)
    own = next((frame for frame in frames if _is_own(frame["file"])), frames[0])
    words = f"at {Path(own['file']).name}:{own['line']} (in {own['name']})"
    return Place(words, "\n".join(frame[0] for frame in frames))


def _main_thread(text: str) -> list[str]:
    return re.split(r"^(?:Current thread|Thread) .*$", text, flags=re.MULTILINE)[-1].splitlines()


def _is_own(file: str) -> bool:
    """Say whether a file is the user's."""
    return not (file.startswith((_PACKAGE, "<", *_LIBRARIES)) or _NOT_THE_USERS.search(file))
