"""Runs one child process: its output goes line by line to a log, and a time limit ends its whole group."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from typing import TextIO

_GRACE_SECONDS = 2


def run_logged(
    command: list[str],
    environ: dict[str, str],
    log: TextIO,
    seconds: float,
    on_line: Callable[[str], None] = lambda _: None,
) -> tuple[int, str]:
    """Run a command to its end or to its time limit.

    Args:
        command: The program and its arguments.
        environ: The environment variables of the child.
        log: Where its output is written.
        seconds: The time limit.
        on_line: Called with every line of output.

    Returns:
        The exit code (124 after the time limit) and the output.
    """
    log.write(f"$ {' '.join(command)}\n")
    log.flush()
    process = subprocess.Popen(
        command,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    expired = threading.Event()

    def expire() -> None:
        expired.set()
        _end_group(process)

    timer = threading.Timer(seconds, expire)
    timer.start()
    lines = []
    try:
        assert process.stdout is not None
        for line in process.stdout:
            log.write(line)
            log.flush()
            lines.append(line)
            on_line(line)
        code = process.wait()
    finally:
        timer.cancel()
        if process.poll() is None:
            _end_group(process)
    return (124 if expired.is_set() else code), "".join(lines)


def _end_group(process: subprocess.Popen[str]) -> None:
    # the group may outlive its first process
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        time.sleep(_GRACE_SECONDS)
        os.killpg(process.pid, signal.SIGKILL)
