"""A rank's output as whole lines: labelled, never torn, and with the last state of a progress bar."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable

_CLEAR_LINE = b"\r\x1b[K"
_CLEAR_REST = b"\x1b[K"


class LineSplitter:
    r"""Cuts one stream of bytes into lines.

    Of a line that was overwritten with ``\r`` only the last state is kept, as a terminal would show it.

    Args:
        on_line: Takes each complete line, without its end.
        on_update: Takes each new state of a line that is not complete yet; None to leave these out.
    """

    def __init__(self, on_line: Callable[[bytes], None], on_update: Callable[[bytes], None] | None = None) -> None:
        self._on_line = on_line
        self._on_update = on_update
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the stream."""
        *lines, rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._on_line(_last_state(line))
        head, carriage, tail = rest.rpartition(b"\r")
        if carriage:
            # a bar may end in \r instead of beginning with it
            state = tail or _last_state(head)
            rest = carriage + tail if tail else state + carriage
            if self._on_update is not None:
                self._on_update(state)
        self._rest = rest

    def close(self) -> None:
        """Give out a last line without an end."""
        if self._rest:
            self._on_line(_last_state(self._rest))
            self._rest = b""


def _last_state(line: bytes) -> bytes:
    return line.rstrip(b"\r").rpartition(b"\r")[2]


class LabelledOutput:
    """Writes the lines of one rank into a file that other ranks write to as well.

    Args:
        descriptor: The file; a lock on it keeps lines of any length whole.
        label: What to put before each line.
        terminal: Whether the lines end on a terminal, where a bar may be standing in the current row.
    """

    def __init__(self, descriptor: int, label: bytes, terminal: bool) -> None:
        self._descriptor = descriptor
        self._label = label
        self._before = _CLEAR_LINE if terminal else b""

    def line(self, text: bytes) -> None:
        """Write one line."""
        self._write(self._before + self._label + text + b"\n")

    def update(self, text: bytes) -> None:
        """Write the new state of a line that stays open."""
        self._write(b"\r" + self._label + text + _CLEAR_REST)

    def _write(self, data: bytes) -> None:
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(self._descriptor, view) :]
        finally:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
