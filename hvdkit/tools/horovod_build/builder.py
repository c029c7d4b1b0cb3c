"""Builds the planned wheel, or takes it from the cache, and installs it."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from filelock import FileLock, Timeout

from hvdkit.engines.horovod.installed import RECORD_NAME
from hvdkit.errors import BuildError
from hvdkit.process.environment import child_environment
from hvdkit.tools.horovod_build import source
from hvdkit.tools.horovod_build.diagnosis import explain
from hvdkit.tools.horovod_build.plan import BuildPlan
from hvdkit.tools.horovod_build.process import run_logged

RUN_NEEDS = ("cloudpickle", "psutil", "pyyaml", "cffi", "packaging")
_BUILD_SECONDS = 3600
_INSTALL_SECONDS = 600

Report = Callable[[str, int | None], None]
"""Called with what is being done and, while compiling, the percentage done."""


def wheel_folder(cache: Path, plan: BuildPlan) -> Path:
    """Return the folder of the cache that holds this plan's wheel."""
    return cache / "wheels" / plan.key()


def cached_wheel(cache: Path, plan: BuildPlan) -> Path | None:
    """Return this plan's wheel from the cache, or None."""
    return next(iter(sorted(wheel_folder(cache, plan).glob("*.whl"))), None)


def log_path(cache: Path, plan: BuildPlan) -> Path:
    """Return the log file of this plan."""
    return cache / "logs" / f"{plan.key()}.log"


def obtain_wheel(plan: BuildPlan, cache: Path, log: TextIO, report: Report, *, use_cache: bool) -> Path:
    """Return the wheel of this plan; a second caller with the same plan waits for the first.

    Raises:
        BuildError: The source cannot be fetched or edited, or the build failed.
    """
    folder = wheel_folder(cache, plan)
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / "lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        report("waiting for another build of the same wheel", None)
        lock.acquire()
    try:
        wheel = cached_wheel(cache, plan) if use_cache else None
        return wheel or _build(plan, cache, log, report)
    finally:
        lock.release()


def install(wheel: Path, log: TextIO) -> None:
    """Install the wheel into the running environment, with what Horovod needs when it runs.

    Raises:
        BuildError: pip failed.
    """
    pip = [sys.executable, "-m", "pip", "install"]
    _run_pip([*pip, "--no-deps", "--force-reinstall", str(wheel)], log)
    _run_pip([*pip, *RUN_NEEDS], log)


def _build(plan: BuildPlan, cache: Path, log: TextIO, report: Report) -> Path:
    report("fetching the source", None)
    archive = source.fetch(cache)
    with tempfile.TemporaryDirectory(prefix="hvdkit-horovod-") as name:
        folder = Path(name)
        report("editing the source", None)
        tree = source.unpack(archive, folder)
        for edit in plan.edits():
            edit.change(tree)
        record = {**plan.identity(), "key": plan.key()}
        (tree / "horovod" / RECORD_NAME).write_text(json.dumps(record, indent=2) + "\n")
        wheel = _compile(plan, tree, folder, log, report)
        kept = wheel_folder(cache, plan) / wheel.name
        unfinished = kept.with_suffix(".unfinished")
        unfinished.write_bytes(wheel.read_bytes())
        os.replace(unfinished, kept)
    return kept


def _compile(plan: BuildPlan, tree: Path, folder: Path, log: TextIO, report: Report) -> Path:
    if plan.gpu:
        # NVIDIA's package lacks the name that a linker looks for
        (folder / "libnccl.so").symlink_to(plan.gpu.nccl.library)
    command = [sys.executable, "-m", "pip", "wheel", "-v", "--no-build-isolation", "--no-deps"]
    command += ["--wheel-dir", str(folder / "wheel"), str(tree)]
    report("configuring", None)

    def follow(line: str) -> None:
        found = re.match(r"\s*\[\s*(\d+)%\]", line)
        if found:
            report("compiling", int(found.group(1)))

    environ = child_environment(**plan.settings(folder))
    code, output = run_logged(command, environ, log, _BUILD_SECONDS, follow)
    wheels = list((folder / "wheel").glob("horovod-*.whl"))
    if code == 124:
        raise BuildError(f"the build was not done within {_BUILD_SECONDS} s and was stopped; log: {log.name}")
    if code != 0 or not wheels:
        raise BuildError(f"horovod did not build: {explain(output) or _first_error(output)}; log: {log.name}")
    return wheels[0]


def _first_error(output: str) -> str:
    found = re.search(r"^.*\berror\b:?.*$", output, re.MULTILINE | re.IGNORECASE)
    line = found.group(0).strip()[:160] if found else "no known cause in the log"
    return f"unknown cause, the first error is '{line}'"


def _run_pip(command: list[str], log: TextIO) -> None:
    code, output = run_logged(command, child_environment(), log, _INSTALL_SECONDS)
    if code != 0:
        reason = explain(output) or "pip install failed"
        raise BuildError(f"horovod was built but not installed: {reason}; log: {log.name}")
