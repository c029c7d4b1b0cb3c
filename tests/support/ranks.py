"""Ranks for tests: started once per (library, engine, size) and session, they take one test body after another.

    @pytest.mark.parametrize("ranks", on("torch", engines=("torch", "mpi"), sizes=(2,)), indirect=True)
    def test_average(ranks):
        def body(value):                        # runs on every rank, after hvdkit has been initialised there
            import hvdkit.torch as hk           # frameworks are imported in bodies, never at the top of a test file
            return hk.average(value)

        assert ranks.run(body, 3.0) == [3.0, 3.0]       # one result per rank

``on`` makes the parameters: framework ``core``, ``torch``, ``tf`` or ``keras``; what this environment cannot run is
skipped with the reason. ``env`` adds variables, such as ``{"KERAS_BACKEND": "jax"}``. Bodies may be closures, and may
import modules that lie beside the test file. Tensors in a result come back as arrays. A body that raises, crashes or
passes its time limit fails the test with the ranks' tracebacks and output, and the next test gets fresh ranks.
HVDKIT_TEST_FRAMEWORKS and HVDKIT_TEST_ENGINES narrow what runs (comma lists). ``launch_fresh`` is for fault tests.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from limits import HANG_SECONDS
from rank_jobs import SUPPORT, Job, beside
from rank_jobs import launch_fresh as launch_fresh

from hvdkit.engines.horovod.installed import built_for
from hvdkit.engines.table import serving


def _keras_version() -> str:
    try:
        return importlib.metadata.version("keras")
    except importlib.metadata.PackageNotFoundError:
        return ""


# marks of what every Keras shows alike, and the environments with Keras 3 show every time
UNDER_KERAS_2 = [pytest.mark.slow] if _keras_version().startswith("2.") else []
_PACKAGES = {"torch": "torch", "tf": "tensorflow", "keras": "keras"}


@dataclass(frozen=True)
class Combination:
    """A pool that tests can ask for."""

    framework: str
    engine: str
    size: int
    env: tuple[tuple[str, str], ...] = ()

    @property
    def shares(self) -> tuple[Any, ...]:
        """What ranks must have in common to serve this combination too: TensorFlow's serve Keras."""
        return self.library, self.engine, self.size, self.env

    @property
    def library(self) -> str | None:
        """The tensor library: Keras counts as the one it runs on."""
        if self.framework == "keras":
            backend = dict(self.env).get("KERAS_BACKEND", "tensorflow")
            return {"tensorflow": "tf"}.get(backend, backend)
        return None if self.framework == "core" else self.framework


def on(
    framework: str,
    engines: Iterable[str] | None = None,
    sizes: Iterable[int] = (2,),
    env: Mapping[str, str] | None = None,
) -> list[Any]:
    """Return the parameters of the fixture ``ranks``; ``serial`` stands for size 1 alone."""
    extra = tuple((env or {}).items())
    library = Combination(framework, "serial", 1, extra).library
    known = [spec.name for spec in serving(library)]
    chosen = [
        Combination(framework, engine, size, extra)
        for engine in (engines or known)
        for size in sizes
        if engine != "serial" or size == 1
    ]
    return [_seldom(entry, chosen) for entry in map(_parameter, chosen)]


def slowly(parameters: Iterable[Any]) -> list[Any]:
    """Return parameters of which every test is a slow one."""
    return [_slow(entry) for entry in parameters]


def but_horovod(parameters: Iterable[Any]) -> list[Any]:
    """Mark Horovod as slow: what a test shows does not depend on the engine, and others show it."""
    return [_slow(entry) if entry.values[0].engine == "horovod" else entry for entry in parameters]


def _seldom(entry: Any, all_chosen: list[Combination]) -> Any:
    """Mark MPI as slow under Keras 2 where Horovod shows the same: Keras 3 shows every time what is MPI's own."""
    framework, engine = entry.values[0].framework, entry.values[0].engine
    both = framework == "tf" or any(other.engine == "horovod" for other in all_chosen)
    return _slow(entry) if UNDER_KERAS_2 and engine == "mpi" and both else entry


def _slow(entry: Any) -> Any:
    return pytest.param(*entry.values, marks=[*entry.marks, pytest.mark.slow], id=entry.id)


def _parameter(combination: Combination) -> Any:
    names = {combination.framework, combination.engine} & {"torch", "tf", "keras", "horovod", "mpi"}
    marks = [getattr(pytest.mark, name) for name in sorted(names)]
    reason = unavailable(combination)
    if reason:
        marks.append(pytest.mark.skip(reason=reason))
    label = [combination.framework, combination.engine, str(combination.size), *dict(combination.env).values()]
    return pytest.param(combination, marks=marks, id="-".join(label))


def unavailable(combination: Combination) -> str:
    """Say why a combination cannot run in this environment; empty if it can."""
    framework, engine = combination.framework, combination.engine
    wanted = os.environ.get("HVDKIT_TEST_FRAMEWORKS", "torch,tf,keras").split(",")
    if framework != "core" and framework not in wanted:
        return f"HVDKIT_TEST_FRAMEWORKS leaves out {framework}"
    if engine not in os.environ.get("HVDKIT_TEST_ENGINES", "serial,horovod,torch,mpi").split(","):
        return f"HVDKIT_TEST_ENGINES leaves out {engine}"
    needed = [_PACKAGES.get(framework), _PACKAGES.get(combination.library or "", combination.library)]
    needed += [{"mpi": "mpi4py", "torch": "torch", "horovod": "horovod"}.get(engine)]
    for package in filter(None, needed):
        if importlib.util.find_spec(package) is None:
            return f"{package} is not installed"
    libraries = [combination.library] if combination.library else ["torch", "tf"]
    if engine == "horovod" and not any(built_for(library) for library in libraries):
        return f"Horovod was built without {' and '.join(libraries)}"
    if engine == "mpi" and beside("mpiexec") is None:
        return "there is no mpiexec"
    return ""


class Pool:
    """N ranks that wait for test bodies."""

    def __init__(self, combination: Combination) -> None:
        self.combination = combination
        self.engine, self.size = combination.engine, combination.size
        self._job: Job | None = None
        self._links: list[Connection] = []

    def run(self, body: Callable[..., Any], *args: Any, timeout: float = HANG_SECONDS, **kwargs: Any) -> list[Any]:
        """Run ``body(*args, **kwargs)`` on every rank; return one result per rank, in rank order."""
        if self._job is None or self._job.process.poll() is not None:
            self.close()
            self._start()
        content = _by_value(body, args, kwargs)
        folder = str(Path(body.__code__.co_filename).parent)
        message = cloudpickle.dumps((folder, max(1.0, timeout - 1.0), content))
        with contextlib.suppress(OSError):
            for link in self._links:
                link.send_bytes(message)
        answers = self._collect(time.monotonic() + timeout)
        if all(kind == "result" for kind, _ in answers):
            return [value for _, value in answers]
        output = self._job.output() if self._job else ""
        self.close()
        errors = "\n".join(f"--- rank {rank}: {kind}\n{text}" for rank, (kind, text) in enumerate(answers))
        raise AssertionError(f"{self.combination}\n{errors}\n--- output of the ranks\n{output}")

    def close(self) -> None:
        """End the ranks."""
        for link in self._links:
            link.close()
        self._links = []
        if self._job is not None:
            self._job.end(patience=3.0)
            self._job = None

    def _start(self) -> None:
        with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"{folder}/ranks")
            listener.listen(self.size)
            env = {"HVDKIT_TEST_SOCKET": f"{folder}/ranks", "HVDKIT_TEST_ENGINE": self.engine}
            # Horovod's ranks ask each other every millisecond whether there is work, also while other tests run: three
            # that wait take most of a core
            env["HOROVOD_CYCLE_TIME"] = "5"
            if self.combination.library:
                env["HVDKIT_TEST_LIBRARY"] = self.combination.library
            # for the ranks alone: horovodrun loads TensorFlow to look at it, and crashes with KERAS_BACKEND=torch
            settings = [f"{name}={value}" for name, value in self.combination.env]
            command = ["env", *settings, sys.executable, str(SUPPORT / "rank_main.py")]
            self._job = Job(command, self.engine, self.size, env)
            self._links = self._accept(listener, self._job)

    def _accept(self, listener: socket.socket, job: Job) -> list[Connection]:
        found: dict[int, Connection] = {}
        deadline = time.monotonic() + HANG_SECONDS
        listener.settimeout(0.2)
        while len(found) < self.size:
            try:
                link = Connection(listener.accept()[0].detach())
                found[link.recv()] = link
            except TimeoutError:
                if job.process.poll() is not None or time.monotonic() > deadline:
                    output = job.output()
                    self.close()
                    raise AssertionError(f"the ranks of {self.combination} did not start:\n{output}") from None
        return [found[rank] for rank in range(self.size)]

    def _collect(self, deadline: float) -> list[tuple[str, Any]]:
        """Wait for every rank; once one has failed, the others get five seconds."""
        answers: dict[int, tuple[str, Any]] = {}
        while len(answers) < self.size and (left := deadline - time.monotonic()) > 0:
            open_links = [link for rank, link in enumerate(self._links) if rank not in answers]
            for link in wait(open_links, timeout=left):
                rank = self._links.index(link)  # type: ignore[arg-type]
                answers[rank] = _receive(link)  # type: ignore[arg-type]
                if answers[rank][0] != "result":
                    deadline = min(deadline, time.monotonic() + 5.0)
        return [answers.get(rank, ("no answer in time", "")) for rank in range(self.size)]


def _by_value(body: Callable[..., Any], args: Any, kwargs: Any) -> bytes:
    """Pickle a body with its module's own helpers, since the ranks cannot import a test file."""
    module = sys.modules[body.__module__]
    cloudpickle.register_pickle_by_value(module)
    try:
        content: bytes = cloudpickle.dumps((body, args, kwargs))
    finally:
        cloudpickle.unregister_pickle_by_value(module)
    return content


def _receive(link: Connection) -> tuple[str, Any]:
    try:
        answer: tuple[str, Any] = link.recv()
    except (EOFError, OSError):
        return "the rank is gone", ""
    return answer
