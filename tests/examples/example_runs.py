"""The examples, run by the commands that their users type, or as scripts in ranks that have their framework loaded."""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from limits import HANG_SECONDS
from rank_jobs import Finished, Job
from ranks import Combination, Pool, on

ROOT = Path(__file__).parents[2]
MNIST = "examples/mnist.py"
BIN = str(Path(sys.executable).parent)
HVDKIT = ["hvdkit"] if shutil.which("hvdkit", path=BIN) else ["python", "-m", "hvdkit"]


def every() -> list[Any]:
    """Return each framework on each of its engines with 2 processes; each begins with another engine."""
    engines = {"torch": ("torch", "horovod", "mpi"), "tf": ("horovod", "mpi"), "keras": ("mpi", "horovod")}
    return [entry for framework, names in engines.items() for entry in on(framework, names)]


def keras_elsewhere() -> list[Any]:
    """Return Keras on torch and on JAX with 2 processes."""
    engines = {"torch": ("torch", "horovod", "mpi"), "jax": ("mpi",)}
    return [entry for name, names in engines.items() for entry in on("keras", names, env={"KERAS_BACKEND": name})]


def one_engine_each(parameters: list[Any]) -> list[Any]:
    """Mark as slow all engines of a framework but the first that this environment has, and Horovod but for the first.

    Each framework has another engine in another environment.
    """
    seen, chosen = set(), []
    for entry in parameters:
        combination, marks = entry.values[0], list(entry.marks)
        if available([entry]):
            keys = {(combination.framework, combination.env)}
            keys |= {"horovod"} if combination.engine == "horovod" else set()
            marks += [pytest.mark.slow] if keys & seen else []
            seen |= keys
        chosen.append(pytest.param(combination, marks=marks, id=entry.id))
    return chosen


def one_process() -> list[Any]:
    """Return the frameworks of this environment on one process without an engine."""
    jax = on("keras", ("serial",), (1,), env={"KERAS_BACKEND": "jax"})
    return [entry for framework in ("torch", "tf", "keras") for entry in on(framework, ("serial",), (1,))] + jax


def available(parameters: list[Any]) -> list[Combination]:
    """Return the combinations that this environment has."""
    return [entry.values[0] for entry in parameters if not any(mark.name == "skip" for mark in entry.marks)]


def run(*command: str, env: Mapping[str, str] | None = None, cwd: Path = ROOT) -> Finished:
    """Run a command to its end with this environment's commands first on PATH; nothing of it is left afterwards."""
    path = os.pathsep.join((BIN, os.environ.get("PATH", os.defpath)))
    options = {"cwd": cwd, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    began = time.monotonic()
    job = Job(list(command), "serial", 1, {"PATH": path, **(env or {})}, **options)
    try:
        out, err = job.process.communicate(timeout=HANG_SECONDS)
    except subprocess.TimeoutExpired:
        job.end()
        out, err = job.process.communicate(timeout=HANG_SECONDS)
        raise AssertionError(f"not finished after {HANG_SECONDS} s: {' '.join(command)}\n{out}\n{err}") from None
    job.end()
    return Finished(job.process.returncode, out, err, time.monotonic() - began)


def succeed(*command: str, **options: Any) -> Finished:
    """Run a command that must end well."""
    finished = run(*command, **options)
    assert finished.code == 0, f"{' '.join(command)}\n{finished.stdout}\n{finished.stderr}"
    return finished


def run_inside(pool: Pool, script: str, *flags: str, cwd: Path = ROOT) -> list[Finished]:
    """Run a script in ranks that wait for work, as ``python`` runs it; how it ended on each rank.

    A new process would spend most of its time on importing the framework.
    """
    return [Finished(*ended, 0.0) for ended in pool.run(_as_main, str(ROOT / script), flags, str(cwd))]


def _as_main(script: str, flags: tuple[str, ...], cwd: str) -> tuple[int, str, str]:
    """Return exit code, output and errors of a script; runs on a rank, whose world the script must not end."""
    import contextlib
    import io
    import os
    import runpy
    import sys
    from unittest import mock

    from hvdkit.errors import HvdkitError
    from hvdkit.job.world import World
    from hvdkit.process.failures import describe

    out, err, code = io.StringIO(), io.StringIO(), 0
    search_path = [os.path.dirname(script), *sys.path]
    with contextlib.ExitStack() as stack:
        stack.callback(os.chdir, os.getcwd())
        os.chdir(cwd)
        for manager in (
            mock.patch.object(sys, "argv", [script, *flags]),
            mock.patch.object(sys, "path", search_path),
            mock.patch.object(World, "shutdown"),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            stack.enter_context(manager)
        try:
            runpy.run_path(script, run_name="__main__")
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except HvdkitError as error:
            code = 1
            err.write(f"hvdkit: error: {describe(error)}\n")
    return code, out.getvalue(), err.getvalue()


def hvdkit_run(combination: Combination, *program: str) -> list[str]:
    """Return the command ``hvdkit run`` for a combination."""
    return [*HVDKIT, "run", "-np", str(combination.size), "--engine", combination.engine, *program]


class Summaries:
    """What runs of ``examples/mnist.py`` wrote; each command runs once in a session."""

    def __init__(self, folder: Path, pools: Any) -> None:
        self._folder = folder
        self._pools = pools
        self._finished: dict[tuple[Any, ...], tuple[Finished, Path]] = {}

    def inside(self, combination: Combination, *flags: str) -> dict[str, Any]:
        """Return the summary of a run in ranks that wait for work."""

        def start(out: str) -> Finished:
            program = (MNIST, "--framework", combination.framework, *flags, "--out", out)
            return max(run_inside(self._pools.get(combination), *program), key=lambda ended: ended.code)

        return self._once((combination, *flags), start)

    def of(self, combination: Combination, *flags: str) -> dict[str, Any]:
        """Return the summary of a run under ``hvdkit run``."""
        program = [MNIST, "--framework", combination.framework, *flags]
        return self.of_command(*hvdkit_run(combination, *program), env=dict(combination.env))

    def of_command(self, *command: str, env: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Return the summary that a command writes when ``--out DIR`` is put at its end."""
        key = (*command, *(f"{name}={value}" for name, value in (env or {}).items()))
        return self._once(key, lambda out: run(*command, "--out", out, env=env))

    def _once(self, key: tuple[Any, ...], start: Callable[[str], Finished]) -> dict[str, Any]:
        """Return the summary of a run that is started if no test has started it before."""
        if key not in self._finished:
            out = self._folder / str(len(self._finished))
            self._finished[key] = start(str(out)), out
        finished, out = self._finished[key]
        assert finished.code == 0, f"{key}\n{finished.stdout}\n{finished.stderr}"
        content: dict[str, Any] = json.loads((out / "summary.json").read_text())
        return content


def write_digits(folder: Path, train: int = 256, validation: int = 64, label: int | None = None) -> Path:
    """Write a small set in MNIST's format, in which each digit is a bright row; ``label`` replaces the last one."""
    folder.mkdir(parents=True, exist_ok=True)
    for prefix, count in (("train", train), ("t10k", validation)):
        random = np.random.default_rng(count)
        labels = (np.arange(count) % 10).astype(np.uint8)
        images = random.integers(0, 128, (count, 28, 28), dtype=np.uint8)
        images[np.arange(count), labels * 2 + 4] = 255
        if label is not None and count:
            labels[-1] = label
        for kind, values in (("images-idx3", images), ("labels-idx1", labels)):
            header = struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape)
            (folder / f"{prefix}-{kind}-ubyte").write_bytes(header + values.tobytes())
    return folder


def error_lines(finished: Finished) -> list[str]:
    """Return hvdkit's error lines as each rank wrote them, and the launcher's own."""
    return [line for line in finished.stderr.splitlines() if re.match(r"(\[\d+\] )?hvdkit: error: ", line)]
