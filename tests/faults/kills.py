"""Processes that are killed at random while they write, and what is left of their files."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from job_processes import ROOT

from faults.jobs import ENDED_SECONDS, FaultyJob, Result, lost
from hvdkit.job.files import epoch_files, read_arrays

WRITERS, TRAININGS = 200, 10
WRITER = """
import sys
import numpy as np
from hvdkit.job import manifest
from hvdkit.job.files import epoch_files, epoch_path, write_arrays
folder, weights = sys.argv[1], np.zeros(200_000)
for epoch in range(1, 10_000):
    path = epoch_path(folder, epoch, "npz")
    write_arrays(path, {"weights": weights + epoch}, {"epoch": epoch})
    for old in epoch_files(folder, "npz")[:-3]:
        old.unlink()
    manifest.note(path)
    print(epoch, flush=True)
"""


def kill_a_writer(seconds: float) -> str:
    """Kill a process that writes file after file; return what was lost, nothing if nothing was."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", WRITER, folder]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            time.sleep(seconds)
            writer.kill()
            written = [1, *(int(line) for line in writer.stdout)]
        missing = lost(Path(folder), 1)
        newest = epoch_files(folder, "npz")[-1]
        _, state = read_arrays(newest)
        return missing or ("" if state["epoch"] >= written[-1] else f"epoch {written[-1]}")


def kill_a_training(framework: str, engine: str, seconds: float, whole: str) -> str:
    """Kill every process of a training that saves whenever it can, let it go on, and compare it with a whole one."""
    with tempfile.TemporaryDirectory() as folder:
        job = FaultyJob(Path(folder))
        arguments = [framework, "killed_at_random", str(job.folder / "checkpoints")]
        try:
            launcher = job.start(engine, (), arguments)
            while not list(job.folder.glob("checkpoints/epoch-*")) and launcher.poll() is None:
                time.sleep(0.01)
            time.sleep(seconds)
            launcher.send_signal(signal.SIGKILL)
            job.end()
            launcher.wait()
            code = job.start(engine, (), arguments).wait(timeout=ENDED_SECONDS)
        finally:
            job.end()
        same = code == 0 and (job.folder / "weights").read_text() == whole
        return "" if same else f"exit code {code}" if code else "other weights"


def whole_training(framework: str, engine: str) -> str:
    """Return the digest of the weights of a training that nobody disturbs."""
    with tempfile.TemporaryDirectory() as folder:
        job = FaultyJob(Path(folder))
        arguments = [framework, "killed_at_random", str(job.folder / "checkpoints")]
        assert job.start(engine, (), arguments).wait(ENDED_SECONDS) == 0
        return (job.folder / "weights").read_text()


def _kill_writers(_framework: str, _engine: str) -> Result:
    draw = random.Random(0)
    return _result([kill_a_writer(draw.uniform(0.0, 0.3)) for _ in range(WRITERS)])


def _kill_trainings(framework: str, engine: str) -> Result:
    draw = random.Random(0)
    whole = whole_training(framework, engine)
    return _result([kill_a_training(framework, engine, draw.uniform(0.0, 0.5), whole) for _ in range(TRAININGS)])


def _result(found: list[str]) -> Result:
    missing = ", ".join(dict.fromkeys(filter(None, found)))
    return Result(None, 0, "", missing, 0, missing)


WRITERS_KILLED = f"{WRITERS} kills of a process that writes files"
KILLS = {
    WRITERS_KILLED: _kill_writers,
    f"{TRAININGS} kills of a training, which then goes on": _kill_trainings,
}
