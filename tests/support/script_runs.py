"""``hvdkit verify`` of scripts, as users start it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from limits import HANG_SECONDS
from rank_jobs import Finished, Job
from ranks import Combination


def verify_script(
    script: Path | str, combination: Combination, cwd: Path, *flags: str, steps: int = 6
) -> tuple[Any, Finished]:
    """Run the command in a folder; return its report, None if it wrote none."""
    command = [sys.executable, "-m", "hvdkit", "verify", "-np", str(combination.size), "--json"]
    command += ["--engine", combination.engine, "--steps", str(steps), str(script), *flags]
    options: dict[str, Any] = {"cwd": cwd, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    began = time.monotonic()
    job = Job(command, "serial", 1, dict(combination.env), **options)
    try:
        out, err = job.process.communicate(timeout=HANG_SECONDS)
    finally:
        job.end()
    finished = Finished(job.process.returncode, out, err, time.monotonic() - began)
    return (json.loads(out) if out.strip() else None), finished


def edited(text: str, *edits: tuple[str, str]) -> str:
    """Return a script with some of its text replaced; each must be there."""
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new)
    return text


def named(names: Iterable[str], every_time: Sequence[str]) -> list[Any]:
    """Return names, all but a few of them slow."""
    return [pytest.param(name, marks=[] if name in every_time else [pytest.mark.slow]) for name in names]


def assert_verified(report: Any, finished: Finished) -> None:
    """Check that everything holds, and that something was looked at."""
    assert finished.code == 0, finished.stdout + finished.stderr
    assert report["passed"]
    assert report["updates"] > 1
    made = {check["step"] for check in report["checks"] if check["passed"]}
    assert {"init", "broadcast", "shard", "scale_lr", "distribute", "average", "checkpoint"} <= made, report["checks"]


def assert_named(report: Any, finished: Finished, step: str, words: str) -> None:
    """Check that a fault is found, and put down to its step."""
    assert finished.code == 1, finished.stdout + finished.stderr
    assert report["fault"]["step"] == step, report
    assert words in report["fault"]["found"], report["fault"]["found"]
