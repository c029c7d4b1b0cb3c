"""One training with one fault: started as users start it, watched from outside, and looked over at its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import job_processes

from faults.catalogue import ENDS, FAULTS, Fault
from hvdkit.errors import CheckpointError
from hvdkit.job import manifest

SCRIPT = Path(__file__).with_name("training.py")
STARTED_SECONDS, ENDED_SECONDS = 120.0, 120.0
EPOCHS = 3


@dataclass(frozen=True)
class Result:
    """How a job took a fault.

    Attributes:
        seconds: From the fault to the end of its last process; None if nothing had gone wrong, or nothing ended.
        code: The exit code of ``hvdkit run``.
        last: Its last line.
        lost: What is damaged or missing of the files; empty if nothing is.
        left: Processes that were still there when the time was up.
        problem: In what it is not as it should be; empty if it is.
    """

    seconds: float | None
    code: int
    last: str
    lost: str
    left: int
    problem: str


@dataclass
class FaultyJob:
    """A job in a folder of its own, whose processes are known by a token."""

    folder: Path
    token: str = field(default_factory=lambda: uuid.uuid4().hex)
    beside: list[subprocess.Popen[bytes]] = field(default_factory=list)
    launcher: subprocess.Popen[bytes] | None = None

    def start(self, engine: str, options: Sequence[str], arguments: list[str]) -> subprocess.Popen[bytes]:
        """Start the training on two processes."""
        command = [sys.executable, "-m", "hvdkit", "run", "-np", "2", "--engine", engine, *options]
        with open(self.folder / "stderr", "wb") as stderr:
            self.launcher = subprocess.Popen(
                [*command, str(SCRIPT), *arguments],
                cwd=self.folder,
                env=job_processes.environment(self.token),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                start_new_session=True,
            )
        return self.launcher

    def end(self) -> None:
        """Kill what is left of it."""
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self.beside:
            process.kill()
            process.wait()

    def processes(self) -> list[int]:
        """Return the living processes of the job."""
        return list(job_processes.processes(self.token))

    def pid_of(self, which: str) -> int:
        """Return the process id of ``launcher``, ``rank N`` or ``supervisor N``."""
        if which == "launcher":
            assert self.launcher is not None
            return self.launcher.pid
        kind, rank = which.split()
        return int((self.folder / f"rank-{rank}").read_text().split()[kind == "supervisor"])


def run(name: str, framework: str, engine: str) -> Result:
    """Run a fault in a framework over an engine."""
    fault = FAULTS[name]
    with tempfile.TemporaryDirectory(prefix="faults-") as folder, _disk(name, Path(folder)) as checkpoints:
        job = FaultyJob(Path(folder))
        try:
            return _watch(job, name, framework, engine, fault, checkpoints)
        finally:
            job.end()


def _watch(job: FaultyJob, name: str, framework: str, engine: str, fault: Fault, checkpoints: Path) -> Result:
    launcher = job.start(engine, fault.options, [framework, name, str(checkpoints)])
    began = _provoke(job, fault)
    ended = _end(job, began)
    left = len(job.processes())
    code = launcher.poll()
    lines = (job.folder / "stderr").read_text(errors="replace").splitlines()
    missing = lost(checkpoints, EPOCHS if code == 0 else fault.files)
    last = lines[-1] if lines else ""
    seconds = None if began is None or ended is None else max(0.0, ended - began)
    problem = _problem(fault, seconds, code, last, missing, left)
    return Result(seconds, -1 if code is None else code, last, missing, left, problem)


def _provoke(job: FaultyJob, fault: Fault) -> float | None:
    """Do what is done from outside; return when the fault happened."""
    assert job.launcher is not None
    until = time.time() + STARTED_SECONDS
    marks = [job.folder / "begun"] if fault.act is None else [job.folder / f"ready-{rank}" for rank in range(2)]
    while not all(mark.exists() for mark in marks) and time.time() < until and job.launcher.poll() is None:
        time.sleep(0.02)
    if fault.act is not None and job.launcher.poll() is None:
        began = time.time()
        fault.act(job)
        return began
    return marks[0].stat().st_mtime if marks[0].exists() else None


def _end(job: FaultyJob, began: float | None) -> float | None:
    """Wait for the last process; return when it ended."""
    until = (began or time.time()) + ENDED_SECONDS
    while time.time() < until:
        assert job.launcher is not None
        job.launcher.poll()
        if not job.processes():
            return time.time()
        time.sleep(0.1)
    return None


def lost(checkpoints: Path, least: int) -> str:
    """Say what is missing or damaged of a folder's files, of which so many must be there; nothing if nothing is."""
    files = sorted(checkpoints.glob("epoch-*")) if least else []
    if len(files) < least:
        return f"{len(files)} of {least} file(s)"
    try:
        for path in files:
            manifest.check(path)
    except CheckpointError as error:
        return str(error)
    return ""


def _problem(fault: Fault, seconds: float | None, code: int | None, last: str, missing: str, left: int) -> str:
    found = []
    if left:
        found.append(f"{left} process(es) left")
    if (code == 0) != (fault.expected != ENDS):
        found.append(f"exit code {code}")
    if fault.expected == ENDS:
        if seconds is not None and seconds > fault.limit:
            found.append(f"{seconds:.0f} s")
        if fault.names not in last or len(last) > 320:
            found.append("last line")
    if missing:
        found.append(missing)
    return ", ".join(found)


@contextmanager
def _disk(name: str, folder: Path) -> Iterator[Path]:
    """Give the folder of the checkpoints, on a disk of its own where that is at fault."""
    checkpoints = folder / "checkpoints"
    if name == "no_folder":
        checkpoints.write_text("a file")
    if name not in ("disk_full", "read_only"):
        yield checkpoints
        return
    checkpoints.mkdir()
    size = "ro" if name == "read_only" else "size=4k"
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "faults", str(checkpoints)], check=True)
    try:
        yield checkpoints
    finally:
        subprocess.run(["umount", "-l", str(checkpoints)], check=True)
