"""Real jobs, each with a hard time limit."""

import importlib.util
import os
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path

import job_processes
import pytest
from limits import HANG_SECONDS, PROMISED_SECONDS

RANK = """
import os, sys, time
names = ("HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK")
rank = int(next((os.environ[name] for name in names if name in os.environ), 0))
"""


def _needs(package, mark, engine):
    missing = importlib.util.find_spec(package) is None
    return pytest.param(engine, marks=[mark, pytest.mark.skipif(missing, reason=f"{package} is not installed")])


ENGINES = [
    _needs("mpi4py", pytest.mark.mpi, "mpi"),
    _needs("torch", pytest.mark.torch, "torch"),
    _needs("horovod", pytest.mark.horovod, "horovod"),
]


@dataclass
class Launch:
    """Starts `hvdkit run` in its own folder and knows every process of its jobs by a token."""

    folder: Path
    token: str = field(default_factory=lambda: uuid.uuid4().hex)

    def script(self, text, name="script.py"):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(RANK + text)
        return name

    def environment(self, **changes):
        return job_processes.environment(self.token, **changes)

    def start(self, *arguments, env=None, **options):
        command = [sys.executable, "-m", "hvdkit", "run", *map(str, arguments)]
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env=self.environment(**(env or {})),
            stdin=subprocess.DEVNULL,
            stdout=options.pop("stdout", subprocess.PIPE),
            stderr=options.pop("stderr", subprocess.PIPE),
            text=True,
            start_new_session=True,
            **options,
        )

    def __call__(self, *arguments, env=None, timeout=HANG_SECONDS):
        process = self.start(*arguments, env=env)
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def processes(self):
        """Return the living processes that carry this job's token, with their command lines."""
        return job_processes.processes(self.token)

    def wait_until(self, condition):
        """Wait until a condition holds; fail after the time that guards against a hang."""
        start = time.monotonic()
        while not condition():
            assert time.monotonic() - start < HANG_SECONDS, self.processes()
            time.sleep(0.05)

    def end_within(self, limit):
        """Wait until no process of the jobs is left; fail if that took longer than a promise in seconds."""
        start, began = time.monotonic(), time.time()
        self.wait_until(lambda: not self.processes())
        assert time.monotonic() - start < limit(PROMISED_SECONDS, since=began)


@pytest.fixture
def launch(tmp_path):
    launched = Launch(tmp_path)
    yield launched
    for pid in launched.processes():
        os.kill(pid, 9)


@pytest.fixture(params=ENGINES)
def engine(request):
    return request.param
