"""Starts the runs."""

from __future__ import annotations

import os
import subprocess
import sys

from hvdkit.process.environment import child_environment
from hvdkit.tools.verification.scripts.job import ScriptJob

_RUNNER = "hvdkit.tools.verification.scripts.runner"
_ERROR = "hvdkit: error: "


def run_ranks(job: ScriptJob, engine: str, run: str) -> str:
    """Run the script on all ranks; return how it failed, in one line, or nothing."""
    options = ["-np", str(job.processes), "--engine", engine]
    return _start(job, ["-m", "hvdkit", "run", *options, "-m", _RUNNER, job.file, run])


def run_alone(job: ScriptJob, run: str) -> str:
    """Run the script on one process; return how it failed, in one line, or nothing."""
    return _start(job, ["-m", _RUNNER, job.file, run])


def _start(job: ScriptJob, arguments: list[str]) -> str:
    path = os.pathsep.join(entry for entry in sys.path if entry)
    done = subprocess.run(
        [sys.executable, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        cwd=job.folder,
        env=child_environment(HVDKIT_CALLER=str(os.getpid()), PYTHONPATH=path),
        check=False,
    )
    if done.returncode == 0:
        return ""
    said = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    return said[-1].removeprefix(_ERROR) if said else f"exit code {done.returncode}"
