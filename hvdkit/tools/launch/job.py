"""Runs one job: starts the launcher, shows the ranks' lines, passes signals on, and tells how it ended."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from hvdkit.engines.start import Start
from hvdkit.engines.table import spec_of
from hvdkit.process.environment import child_environment, user_set_threads
from hvdkit.tools.launch.processes import (
    adopt_orphans,
    descendants,
    end_descendants,
    end_with_parent,
    is_alive,
    send_signal,
)

# seconds from the first failure, or from a signal, to each further step towards the end of the job
RANKS_TOLD_AFTER = 1.0
LAUNCHER_TOLD_AFTER = 5.0
KILLED_AFTER = 8.0


@dataclass(frozen=True)
class Outcome:
    """How a job ended.

    Attributes:
        code: The exit code: 0, that of the first failing rank, or 128 + n if signal n ended the job.
        message: One line on the first failure; empty if there is none.
    """

    code: int
    message: str = ""


def run_job(start: Start, command: list[str]) -> Outcome:
    """Run a job to its end; no process of it is left afterwards.

    Args:
        start: What to start.
        command: The launcher's command line for it.
    """
    adopt_orphans()
    with tempfile.TemporaryDirectory(prefix="hvdkit-", ignore_cleanup_errors=True) as folder:
        return _Run(start, command, Path(folder)).to_the_end()


class _Run:
    """A running job."""

    def __init__(self, start: Start, command: list[str], folder: Path) -> None:
        self._start = start
        self._folder = folder
        self._signal: int | None = None
        self._ending_since: float | None = None
        self._ranks_told = False
        self._launcher_told = False
        self._lost: dict[int, dict[str, Any]] = {}
        self._own_words = folder / "launcher"
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(signum, self._pass_on)
        pipes = [_Collector(folder / name, descriptor) for name, descriptor in (("stdout", 1), ("stderr", 2))]
        with self._own_words.open("wb") as words:
            # ranks on this host write into the two pipes, so a launcher's own output can be held back; of ranks
            # on other hosts the launcher shows the lines
            output = words if start.is_local else None
            self._launcher = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=child_environment(**_variables(start, folder)),
                start_new_session=True,
                preexec_fn=_end_with_launching_process,
            )
        self._collectors = pipes
        for collector in pipes:
            collector.start()

    def to_the_end(self) -> Outcome:
        """Wait for the launcher, end what does not end by itself, and read how the ranks failed."""
        while self._launcher.poll() is None:
            self._find_lost_ranks()
            self._hasten()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._launcher.wait(timeout=0.2)
        end_descendants(grace=1.0)
        for collector in self._collectors:
            collector.finish()
        return self._outcome()

    def _pass_on(self, signum: int, _frame: FrameType | None) -> None:
        if self._signal is None:
            self._signal = signum
            self._ending_since = time.monotonic()
            self._tell_ranks(signum)

    def _tell_ranks(self, signum: int) -> None:
        self._ranks_told = True
        for pid in self._supervisors():
            send_signal(pid, signum)

    def _registered(self) -> dict[int, int]:
        """Return the process id of each rank's supervisor, as far as they have registered."""
        found = {}
        for path in self._folder.glob("pid-*"):
            with contextlib.suppress(FileNotFoundError, ValueError):
                found[int(path.name.removeprefix("pid-"))] = int(path.read_text())
        return found

    def _supervisors(self) -> list[int]:
        ours = set(descendants(os.getpid()))
        return [pid for pid in self._registered().values() if pid in ours]

    def _find_lost_ranks(self) -> None:
        """Notice supervisors that are gone without a word; not every launcher does."""
        for rank, pid in self._registered().items():
            if rank not in self._lost and not is_alive(pid) and (self._folder / f"pid-{rank}").exists():
                message = "the process that supervises it was killed"
                self._lost[rank] = {
                    "rank": rank,
                    "time": time.time(),
                    "code": 137,
                    "message": message,
                    "secondary": False,
                }

    def _hasten(self) -> None:
        if self._ending_since is None:
            if self._lost or any(self._folder.glob("failure-*.json")):
                self._ending_since = time.monotonic()
            return
        passed = time.monotonic() - self._ending_since
        if passed > RANKS_TOLD_AFTER and not self._ranks_told:
            self._tell_ranks(signal.SIGTERM)
        patience = LAUNCHER_TOLD_AFTER if self._supervisors() else RANKS_TOLD_AFTER
        if passed > patience and not self._launcher_told:
            self._launcher_told = True
            self._launcher.terminate()
        if passed > KILLED_AFTER:
            for pid in descendants(os.getpid()):
                send_signal(pid, signal.SIGKILL)

    def _outcome(self) -> Outcome:
        if self._signal is not None:
            return Outcome(128 + self._signal, f"ended by {signal.Signals(self._signal).name}")
        recorded = [json.loads(path.read_text()) for path in self._folder.glob("failure-*.json")]
        failures = [*recorded, *self._lost.values()]
        if failures:
            first = min(failures, key=_order)
            return Outcome(first["code"] or 1, f"rank {first['rank']}: {first['message']}")
        code = self._launcher.returncode
        if code == 0:
            return Outcome(0)
        sys.stderr.write(self._own_words.read_text(errors="replace"))
        ended = f"exit code {code}" if code > 0 else signal.Signals(-code).name
        return Outcome(
            code if code > 0 else 128 - code,
            f"{spec_of(self._start.engine).started_by} ended with {ended}; see its lines above",
        )


def _order(failure: dict[str, Any]) -> tuple[bool, float]:
    return bool(failure["secondary"]), float(failure["time"])


def _variables(start: Start, folder: Path) -> dict[str, str]:
    variables = {"HVDKIT_ENGINE": start.engine, "HVDKIT_FAILURE_DIR": str(folder)}
    if not user_set_threads():
        threads = str(max(1, len(os.sched_getaffinity(0)) // start.processes_here))
        # TensorFlow's own threads do not heed OpenMP's variable
        variables |= {"OMP_NUM_THREADS": threads, "TF_NUM_INTRAOP_THREADS": threads}
    if start.log_dir is not None:
        variables["HVDKIT_LOG_DIR"] = start.log_dir
    if os.isatty(1) and os.isatty(2):
        variables["HVDKIT_TERMINAL"] = str(shutil.get_terminal_size().columns)
    return {**variables, **spec_of(start.engine).variables(str(folder))}


def _end_with_launching_process() -> None:
    end_with_parent(signal.SIGTERM)


class _Collector:
    """Copies what all ranks write into one named pipe to this process's own output, line by line."""

    _lock = threading.Lock()

    def __init__(self, path: Path, descriptor: int) -> None:
        os.mkfifo(path)
        # open for both, so that neither opening nor reading depends on a rank being there
        self._pipe = os.open(path, os.O_RDWR)
        self._descriptor = descriptor
        self._thread = threading.Thread(target=self._pump, daemon=True)
        self._end = secrets.token_hex(16).encode() + b"\n"

    def start(self) -> None:
        """Begin to copy."""
        self._thread.start()

    def finish(self) -> None:
        """Copy what is left; all writers are gone."""
        os.write(self._pipe, self._end)
        self._thread.join(timeout=10.0)

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
                while view:
                    view = view[os.write(self._descriptor, view) :]
        except BrokenPipeError:
            # nobody reads any more (as in `| head`): end the job, and let the ranks' lines go
            send_signal(os.getpid(), signal.SIGTERM)
