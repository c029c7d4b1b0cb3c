"""The child of a launcher that supervises one rank: ``python -m hvdkit.tools.launch.child script.py args…``.

The rank's script runs in a separate process below this one. This one labels its lines, passes signals on, notes by
which signal it died, and ends whatever the script leaves behind.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import tty
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from hvdkit.process import failures
from hvdkit.process.environment import (
    child_environment,
    failure_dir,
    launched_as,
    rank_log_dir,
    restarts,
    terminal_columns,
)
from hvdkit.tools.launch.lines import LabelledOutput, LineSplitter
from hvdkit.tools.launch.processes import (
    adopt_orphans,
    end_descendants,
    end_with_parent,
    hand_on,
    handle,
    send_signal,
)

GRACE_SECONDS = 5.0


def main(arguments: list[str]) -> int:
    """Run a script as this rank, wait for it, and return its exit code.

    Args:
        arguments: The script and its arguments, or ``-m``, a module and its arguments.
    """
    rank = launched_as().rank
    end_with_parent(signal.SIGTERM)
    adopt_orphans()
    # rank 0 sees a terminal where there is one, so that its progress bars look as they always do
    columns = terminal_columns() if rank == 0 else None
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(_log_file(rank))
        streams = [_Stream(name, rank, columns, log) for name in ("stdout", "stderr")]
        supervisor = _Supervisor(arguments, streams)
        with _registered(rank):
            code = supervisor.wait()
            end_descendants(grace=1.0)
            for stream in streams:
                stream.finish()
    return code


class _Stream:
    """One of the two output streams of the script, read by a thread."""

    def __init__(self, name: str, rank: int, columns: int | None, log: int | None) -> None:
        label = f"[{rank}] ".encode()
        self._read_end, self.write_end = _terminal(columns - len(label)) if columns else os.pipe()
        self._log = log
        self._output = _open_output(name, label)
        self._lines = LineSplitter(self._line, self._output.update if columns else None)
        self._thread = threading.Thread(target=self._pump, daemon=True)

    def start(self) -> None:
        """Begin to read, now that the script has the other end."""
        os.close(self.write_end)
        self._thread.start()

    def finish(self) -> None:
        """Wait until everything is written."""
        self._thread.join(timeout=GRACE_SECONDS)

    def _pump(self) -> None:
        # reading a terminal whose other end is closed is an error, not an end of file
        with contextlib.suppress(OSError):
            while data := os.read(self._read_end, 65536):
                self._lines.feed(data)
        self._lines.close()

    def _line(self, text: bytes) -> None:
        if self._log is not None:
            try:
                os.write(self._log, text + b"\n")
            except OSError as error:
                # training is worth more than its log
                self._log = None
                self._output.line(f"hvdkit: the log file ends here: {error.strerror}".encode())
        self._output.line(text)


class _Supervisor:
    """Starts the script and passes signals on to it."""

    def __init__(self, arguments: list[str], streams: list[_Stream]) -> None:
        command = [sys.executable, "-m", "hvdkit.tools.launch.script", str(os.getpid()), *arguments]
        self._signal: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        handle(self._pass_on)
        hand_on(self._hand_on)
        # an MPI launcher may hand down open descriptors; a separate session keeps the terminal's signals away
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=streams[0].write_end,
            stderr=streams[1].write_end,
            close_fds=False,
            start_new_session=True,
            env=child_environment(),
        )
        for stream in streams:
            stream.start()
        self._process = process
        if self._signal is not None:
            self._end(process, self._signal)

    def wait(self) -> int:
        """Wait for the script; return its exit code, 128 + n for signal n."""
        assert self._process is not None
        code = self._process.wait()
        message = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        code = 128 - code if code < 0 else code
        if code and not self._recorded():
            failures.record(message, code, secondary=self._signal is not None)
        return code

    def _recorded(self) -> bool:
        folder = failure_dir()
        return folder is not None and (Path(folder) / f"failure-{launched_as().rank}.json").exists()

    def _pass_on(self, signum: int, _frame: FrameType | None) -> None:
        if self._signal is None:
            self._signal = signum
            if self._process is not None:
                self._end(self._process, signum)

    def _hand_on(self, signum: int, _frame: FrameType | None) -> None:
        if self._process is not None:
            send_signal(self._process.pid, signum)

    def _end(self, process: subprocess.Popen[bytes], signum: int) -> None:
        """Pass a signal on, give the script some seconds, then kill it."""
        send_signal(process.pid, signum)
        # one that was stopped would not see it
        send_signal(process.pid, signal.SIGCONT)
        timer = threading.Timer(GRACE_SECONDS, process.kill)
        timer.daemon = True
        timer.start()


def _open_output(name: str, label: bytes) -> LabelledOutput:
    """Open the launcher's collecting pipe; on another host there is none, and the launcher there labels lines."""
    folder = failure_dir()
    path = Path(folder) / name if folder is not None else None
    if path is None or not path.is_fifo():
        return LabelledOutput({"stdout": 1, "stderr": 2}[name], b"", terminal=False)
    pipe = os.open(path, os.O_WRONLY)
    threading.Thread(target=_end_with_reader, args=(pipe,), daemon=True).start()
    return LabelledOutput(pipe, label, terminal=terminal_columns() is not None)


def _end_with_reader(pipe: int) -> None:
    """End when nobody reads the pipe any more: `hvdkit run` is gone, and the launcher below it may not notice."""
    poll = select.poll()
    poll.register(pipe, 0)
    poll.poll()
    send_signal(os.getpid(), signal.SIGTERM)


def _terminal(columns: int) -> tuple[int, int]:
    read_end, write_end = pty.openpty()
    tty.setraw(write_end)
    fcntl.ioctl(write_end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, max(columns, 20), 0, 0))
    return read_end, write_end


@contextlib.contextmanager
def _log_file(rank: int) -> Iterator[int | None]:
    folder = rank_log_dir()
    if folder is None:
        yield None
        return
    path = Path(folder) / f"rank-{rank}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab" if restarts() else "wb", buffering=0) as file:
        yield file.fileno()


@contextlib.contextmanager
def _registered(rank: int) -> Iterator[None]:
    """Tell the launcher this process's id while the script runs, and that it has ended."""
    folder = failure_dir()
    if folder is None or not Path(folder).is_dir():
        yield
        return
    path = Path(folder) / f"pid-{rank}"
    path.write_text(str(os.getpid()))
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.replace(path.with_name(f"ended-{rank}"))


def _arguments(words: list[str]) -> list[str]:
    """Return the program: given as it is, or as one word of JSON."""
    if len(words) == 1 and words[0].startswith("["):
        return [str(word) for word in json.loads(words[0])]
    return words


if __name__ == "__main__":
    sys.exit(main(_arguments(sys.argv[1:])))
