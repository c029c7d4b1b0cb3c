"""Real launchers and the processes below them; all of these end with the job."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from limits import HANG_SECONDS

SUPPORT = Path(__file__).parent
ROOT = SUPPORT.parents[1]
# ranks may share one output, and unbuffered Python writes a line in pieces
_WHOLE_LINES = "import sys; sys.stdout.reconfigure(line_buffering=True)\n"
_LAUNCHER_VARIABLES = ("OMPI_", "PMI", "PMIX", "PRTE", "HOROVOD_", "HVDKIT_", "OMP_NUM", "MKL_NUM", "TF_NUM", "RANK")


class Job:
    """A launcher and its ranks, all of which end with it."""

    def __init__(self, command: list[str], engine: str, size: int, env: Mapping[str, str], **options: Any) -> None:
        self.token = uuid.uuid4().hex
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the job
        # what a killed mpirun leaves behind stops a later one that happens to get its process id
        self._sessions = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        env = {"PRTE_MCA_prte_tmpdir_base": self._sessions.name, **env}
        self.process = subprocess.Popen(
            [*launcher(engine, size), *command],
            env={**environment(), **env, "HVDKIT_TEST_TOKEN": self.token},
            stdin=subprocess.DEVNULL,
            stdout=options.pop("stdout", self._output),
            stderr=options.pop("stderr", self._output),
            start_new_session=True,
            **options,
        )

    def output(self) -> str:
        """Return the end of what the ranks have written."""
        self._output.seek(0)
        return self._output.read().decode(errors="replace")[-12000:]

    def end(self, patience: float = 0.0) -> None:
        """End every process of the job, after some seconds in which it may end by itself."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=patience)
        # launchers put ranks into groups of their own; the token finds them all
        # until none is left: one that was killed may still finish a system call, such as the renaming of a file
        while pids := carrying(self.token):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        self.process.wait(timeout=HANG_SECONDS)
        self._output.close()
        self._sessions.cleanup()


@dataclass(frozen=True)
class Finished:
    """How a fresh job ended."""

    code: int
    stdout: str
    stderr: str
    seconds: float


def launch_fresh(
    script: str,
    engine: str = "serial",
    size: int = 1,
    args: Iterable[str] = (),
    env: Mapping[str, str] | None = None,
    timeout: float = HANG_SECONDS,
) -> Finished:
    """Run a script, given as text or as a path, on fresh ranks; fail the test when it passes the time limit."""
    with tempfile.TemporaryDirectory() as folder:
        path, env = script, dict(env or {})
        if "\n" in script:
            path = f"{folder}/script.py"
            Path(path).write_text(_WHOLE_LINES + script.removeprefix("\n"))
            env["PYTHONUNBUFFERED"] = ""
        began = time.monotonic()
        command = [sys.executable, path, *args]
        job = Job(command, engine, size, env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            out, err = job.process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            for pid in carrying(job.token):
                os.kill(pid, signal.SIGKILL)
            out, err = job.process.communicate(timeout=HANG_SECONDS)
            raise AssertionError(f"not finished after {timeout} s:\n{out}\n{err}") from None
        finally:
            job.end()
        return Finished(job.process.returncode, out, err, time.monotonic() - began)


def launcher(engine: str, size: int) -> list[str]:
    """Return the command that starts ``size`` ranks for an engine."""
    if engine == "mpi":
        return [beside("mpiexec") or "mpiexec", "-n", str(size), "--oversubscribe", "--bind-to", "none"]
    if engine == "torch":
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python"]
        return [*torchrun, f"--nproc-per-node={size}"]
    if engine == "horovod":
        return [beside("horovodrun") or "horovodrun", "--gloo", "-np", str(size)]
    return []


def environment() -> dict[str, str]:
    """Return the environment of the ranks: none of this process's launcher, one CPU thread each."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(_LAUNCHER_VARIABLES)}
    clean.pop("WORLD_SIZE", None)
    path = os.pathsep.join(filter(None, (str(ROOT), clean.get("PYTHONPATH"))))
    threads = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
    as_root = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
    return {
        **clean,
        "PYTHONPATH": path,
        "PYTHONUNBUFFERED": "1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        **dict.fromkeys((*threads, *as_root), "1"),
    }


def beside(command: str) -> str | None:
    """Find a command, first beside the interpreter."""
    return shutil.which(command, path=str(Path(sys.executable).parent)) or shutil.which(command)


def carrying(token: str) -> list[int]:
    """Return the living processes that carry a token in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if token.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return found
