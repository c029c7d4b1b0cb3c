"""Runs one job: starts the launcher, shows the ranks' lines, passes signals on, and tells how it ended."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from hvdkit.engines.start import Start
from hvdkit.engines.table import spec_of
from hvdkit.process.environment import child_environment, stuck_limits, user_set_threads
from hvdkit.process.failures import AGAIN
from hvdkit.process.watch.judge import Limits
from hvdkit.tools.launch.arrivals import Absent, Arrivals
from hvdkit.tools.launch.collector import Collector
from hvdkit.tools.launch.processes import (
    TIME_IS_UP,
    adopt_orphans,
    descendants,
    end_descendants,
    end_with_parent,
    hand_on,
    handle,
    is_alive,
    send_signal,
)

# seconds from the first failure, or from a signal, to each further step towards the end of the job
RANKS_TOLD_AFTER = 1.0
LAUNCHER_TOLD_AFTER = 5.0
KILLED_AFTER = 8.0

# one Ctrl-C reaches the launcher twice: from the terminal, and from the process above it
_ONE_KEY_SECONDS = 0.5
_LOOK_SECONDS = 1.0
_LONGEST = 300
_REFUSALS = ("RecipeError", "DataError", "ModelError", "EngineError", "LaunchError", "CheckpointError")
_TOLD = re.compile(r"rank (?P<rank>\d+) failed: (?P<message>.*)", re.DOTALL)


@dataclass(frozen=True)
class Outcome:
    """How a job ended.

    Attributes:
        code: The exit code: 0, that of the first failing rank, or 128 + n if signal n ended the job.
        message: One line on the first failure; empty if there is none.
        final: Whether the same job would end so again: it was asked to end, or refuses what it was given.
    """

    code: int
    message: str = ""
    final: bool = False


def run_job(start: Start, command: list[str]) -> Outcome:
    """Run a job to its end; no process of it is left afterwards.

    Args:
        start: What to start.
        command: The launcher's command line for it.
    """
    adopt_orphans()
    with tempfile.TemporaryDirectory(prefix="hvdkit-", ignore_cleanup_errors=True) as folder, _kept(folder):
        return _Run(start, command, Path(folder)).to_the_end()


@contextlib.contextmanager
def _kept(folder: str) -> Iterator[None]:
    """Keep cleaners of temporary folders away, which heed a lock."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


class _Run:
    """A running job."""

    def __init__(self, start: Start, command: list[str], folder: Path) -> None:
        self._start = start
        self._folder = folder
        self._signal: int | None = None
        self._ending_since: float | None = None
        self._ranks_told = False
        self._launcher_told = self._warned = False
        self._lost: dict[int, dict[str, Any]] = {}
        self._known: dict[int, int] = {}
        limits = stuck_limits(Limits(), child_environment(**_own_limits(start)))
        self._arrivals = Arrivals(folder, start.processes, limits)
        self._looked = 0.0
        self._own_words = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the job
        handle(self._pass_on)
        hand_on(lambda signum, _frame: self._send_to_ranks(signum))
        pipes = [Collector(folder / name, descriptor) for name, descriptor in (("stdout", 1), ("stderr", 2))]
        # ranks on this host write into the two pipes, so a launcher's own output can be held back; of ranks
        # on other hosts the launcher shows the lines
        output = self._own_words if start.is_local else None
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
            with contextlib.suppress(OSError):
                # a cleaner may have removed it, and ranks write there how they fail
                self._folder.mkdir(mode=0o700, exist_ok=True)
            self._find_lost_ranks()
            self._find_absent_ranks()
            self._warn_of_the_time()
            self._hasten()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._launcher.wait(timeout=0.2)
        end_descendants(grace=1.0)
        for collector in self._collectors:
            collector.finish()
        problems = ", ".join(sorted({collector.problem for collector in self._collectors if collector.problem}))
        if problems:
            _say(f"hvdkit: some lines of the ranks could not be written: {problems}\n")
        return self._outcome()

    def _pass_on(self, signum: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._signal is None or self._ending_since is None:
            self._signal, self._ending_since = signum, now
            self._tell_ranks(signum)
        elif now - self._ending_since > _ONE_KEY_SECONDS:
            # who asks again does not want to wait
            self._ending_since = now - KILLED_AFTER - 1.0

    def _tell_ranks(self, signum: int) -> None:
        self._ranks_told = True
        self._send_to_ranks(signum)

    def _send_to_ranks(self, signum: int) -> None:
        for pid in self._supervisors():
            send_signal(pid, signum)

    def _registered(self) -> dict[int, int]:
        """Return the process id of each rank's supervisor, as far as they have registered."""
        for path in self._folder.glob("pid-*"):
            with contextlib.suppress(FileNotFoundError, ValueError):
                self._known[int(path.name.removeprefix("pid-"))] = int(path.read_text())
        return self._known

    def _supervisors(self) -> list[int]:
        ours = set(descendants(os.getpid()))
        return [pid for pid in self._registered().values() if pid in ours]

    def _find_lost_ranks(self) -> None:
        """Notice supervisors that are gone without a word; not every launcher does."""
        for rank, pid in self._registered().items():
            if rank not in self._lost and not is_alive(pid) and (self._folder / f"pid-{rank}").exists():
                self._lose(rank, 137, "the process that supervises it was killed")

    def _lose(self, rank: int, code: int, message: str) -> None:
        entry = {"rank": rank, "time": time.time(), "code": code, "message": message, "secondary": False}
        self._lost.setdefault(rank, entry)

    def _find_absent_ranks(self) -> None:
        """Notice ranks for which others wait before they know each other."""
        now = time.monotonic()
        if now - self._looked < _LOOK_SECONDS or not self._start.is_local:
            return
        self._looked = now
        found = self._arrivals.look(self._ended())
        if isinstance(found, Absent):
            self._lose(found.rank, 1, found.message)
        elif found is not None:
            _say(f"hvdkit: {found}\n")

    def _ended(self) -> list[int]:
        return [int(path.name.removeprefix("ended-")) for path in self._folder.glob("ended-*")]

    def _warn_of_the_time(self) -> None:
        """Tell ranks once that the scheduler's time is nearly up."""
        due = self._start.signal_at
        if due is not None and not self._warned and time.time() > due:
            self._warned = True
            self._send_to_ranks(TIME_IS_UP)

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
            return Outcome(128 + self._signal, f"ended by {signal.Signals(self._signal).name}", final=True)
        recorded = [json.loads(path.read_text()) for path in self._folder.glob("failure-*.json")]
        failures = [*recorded, *self._lost.values()]
        code = self._launcher.returncode
        if not failures and code == 0:
            return Outcome(0)
        if all(failure["secondary"] for failure in failures):
            # a launcher may end the others sooner than they are missed here
            quiet = set(self._ended()) - {failure["rank"] for failure in failures}
            if left := self._arrivals.who_left(quiet):
                return Outcome(1, f"rank {left.rank}: {left.message}")
        if failures:
            return _of_failure(min(failures, key=_order))
        self._own_words.seek(0)
        sys.stderr.write(self._own_words.read().decode(errors="replace"))
        ended = f"exit code {code}" if code > 0 else signal.Signals(-code).name
        return Outcome(
            code if code > 0 else 128 - code,
            f"{spec_of(self._start.engine).started_by} ended with {ended}; see its lines above",
        )


def _of_failure(failure: dict[str, Any]) -> Outcome:
    """Return how a job ended whose first failure this is; one that was only told of another's names that."""
    message = f"rank {failure['rank']}: {failure['message']}"
    if told := _TOLD.match(failure["message"]):
        message = f"rank {told['rank']}: {told['message']}"
    if len(message) > _LONGEST:
        whole = tempfile.NamedTemporaryFile("w", prefix="hvdkit-failure-", suffix=".txt", delete=False)  # noqa: SIM115
        with whole:
            whole.write(f"{message}\n\n{failure.get('traceback', '')}")
        rest = f" … (the whole text: {whole.name})"
        message = message[: _LONGEST - len(rest)] + rest
    if failure["code"] == AGAIN:
        return Outcome(AGAIN, "saved before the time was up; start the job again to go on", final=True)
    return Outcome(failure["code"] or 1, message, final=failure.get("class") in _REFUSALS)


def _say(text: str) -> None:
    with contextlib.suppress(OSError):
        sys.stderr.write(text)
        sys.stderr.flush()


def _order(failure: dict[str, Any]) -> tuple[bool, float]:
    return bool(failure["secondary"]), float(failure["time"])


def _variables(start: Start, folder: Path) -> dict[str, str]:
    variables = {"HVDKIT_ENGINE": start.engine, "HVDKIT_FAILURE_DIR": str(folder)}
    if not user_set_threads():
        threads = str(max(1, len(os.sched_getaffinity(0)) // start.processes_here))
        # TensorFlow's own threads do not heed OpenMP's variable
        variables |= {"OMP_NUM_THREADS": threads, "TF_NUM_INTRAOP_THREADS": threads}
    variables |= _own_limits(start)
    if start.restarts:
        variables["HVDKIT_RESTARTS"] = str(start.restarts)
    if start.log_dir is not None:
        variables["HVDKIT_LOG_DIR"] = start.log_dir
    if os.isatty(1) and os.isatty(2):
        variables["HVDKIT_TERMINAL"] = str(shutil.get_terminal_size().columns)
    return {**variables, **spec_of(start.engine).variables(str(folder))}


def _own_limits(start: Start) -> dict[str, str]:
    """Return the variables for the limits that the command line gives, or the caller's own."""
    limits = {"HVDKIT_REPORT_AFTER": start.report_after, "HVDKIT_STUCK_AFTER": start.stuck_after}
    return {name: f"{value:g}" for name, value in limits.items() if value is not None}


def _end_with_launching_process() -> None:
    end_with_parent(signal.SIGTERM)
