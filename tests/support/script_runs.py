"""``hvdkit verify`` of scripts, as users start it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from rank_jobs import Finished
from ranks import Combination
from verify_runs import report_of


def verify_script(
    script: Path | str, combination: Combination, cwd: Path, *flags: str, steps: int = 6
) -> tuple[Any, Finished]:
    """Run the command in a folder; return its report, None if it wrote none."""
    command = [sys.executable, "-m", "hvdkit", "verify", "-np", str(combination.size), "--json"]
    command += ["--engine", combination.engine, "--steps", str(steps), str(script), *flags]
    return report_of(command, combination, cwd)


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
