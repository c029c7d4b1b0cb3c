"""What all ranks on this host write comes through one named pipe for each stream to the launcher, which shows it."""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import signal
import threading
from pathlib import Path

from hvdkit.tools.launch.processes import send_signal

# a reader of the job's output that takes longer loses the rest
_SHOWN_SECONDS = 5.0


class Collector:
    """Copies what all ranks write into one named pipe to this process's own output, line by line.

    Attributes:
        problem: Why lines could not be written, if that is so.
    """

    _lock = threading.Lock()

    def __init__(self, path: Path, descriptor: int) -> None:
        os.mkfifo(path)
        # open for both, so that neither opening nor reading depends on a rank being there
        self._pipe = os.open(path, os.O_RDWR)
        self._descriptor = descriptor
        self._thread = threading.Thread(target=self._pump, daemon=True)
        self._end = secrets.token_hex(16).encode() + b"\n"
        self._given_up = False
        self.problem = ""

    def start(self) -> None:
        """Begin to copy."""
        self._thread.start()

    def finish(self) -> None:
        """Copy what is left; all writers are gone."""
        with contextlib.suppress(BlockingIOError):
            os.set_blocking(self._pipe, False)
            os.write(self._pipe, self._end)
        self._thread.join(timeout=_SHOWN_SECONDS)
        self._given_up = True

    def _pump(self) -> None:
        rest = b""
        while True:
            head, newline, rest = (rest + os.read(self._pipe, 65536)).rpartition(b"\n")
            lines = head + newline
            if lines.endswith(self._end):
                self._show(lines.removesuffix(self._end))
                return
            self._show(lines)
            if rest.startswith(b"\r"):
                # the new state of a progress bar
                self._show(rest)
                rest = b""

    def _show(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            with self._lock:
                while view and not self._given_up:
                    view = view[self._write(view) :]
        except BrokenPipeError:
            # nobody reads any more (as in `| head`): end the job, and let the ranks' lines go
            send_signal(os.getpid(), signal.SIGTERM)
        except OSError as error:
            # a full disk: training is worth more than its lines
            self.problem = self.problem or str(error.strerror)

    def _write(self, data: memoryview) -> int:
        try:
            return os.write(self._descriptor, data)
        except BlockingIOError:
            # somebody has made the output a pipe that does not block, and reads slowly
            select.select([], [self._descriptor], [], 0.5)
            return 0
