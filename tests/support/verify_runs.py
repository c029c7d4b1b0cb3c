"""``hvdkit verify`` as users start it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from limits import HANG_SECONDS
from rank_jobs import Finished, Job
from ranks import Combination

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
ROOT = Path(__file__).parents[2]
MUTANTS_FILE = str(ROOT / "tests" / "consistency" / "mutants.py")


def run_verify(
    recipe: str, combination: Combination, *flags: str, threads_shared: bool = False
) -> tuple[Any, Finished]:
    """Run the command; return its report, None if it wrote none.

    Args:
        recipe: In a file.
        combination: Framework, engine and processes.
        *flags: More arguments.
        threads_shared: Let hvdkit share the threads, which tests set to one for each process.
    """
    unset = [part for name in _THREADS for part in ("-u", name)] if threads_shared else []
    command = ["env", *unset, sys.executable, "-m", "hvdkit", "verify", recipe, "--framework", combination.framework]
    command += ["-np", str(combination.size), "--engine", combination.engine, "--json", *flags]
    return report_of(command, combination, ROOT)


def report_of(command: list[str], combination: Combination, cwd: Path) -> tuple[Any, Finished]:
    """Run a command in a folder; return its report, None if it wrote none."""
    options: dict[str, Any] = {"cwd": cwd, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    began = time.monotonic()
    job = Job(command, "serial", 1, dict(combination.env), **options)
    try:
        out, err = job.process.communicate(timeout=HANG_SECONDS)
    finally:
        job.end()
    finished = Finished(job.process.returncode, out, err, time.monotonic() - began)
    return (json.loads(out) if out.strip() else None), finished
