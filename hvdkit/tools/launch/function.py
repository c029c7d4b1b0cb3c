"""``hvdkit.run``: a function on N processes, for notebooks."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hvdkit.errors import LaunchError
from hvdkit.process.environment import child_environment
from hvdkit.tools.launch.hosts import parse_hosts
from hvdkit.tools.launch.pickling import pack

_ERROR = "hvdkit: error: "
_END_SECONDS = 15.0


def run(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    np: int = 2,
    hosts: str | None = None,
    engine: str = "auto",
    verbose: bool = True,
) -> list[Any]:
    """Call a function on N processes at the same time and return what each returned.

    The function is sent with the variables that it uses. Import frameworks inside it, and make models, files and
    writers there.

    Args:
        fn: The function; it may be defined in a notebook.
        args: Its positional arguments, the same on every rank.
        kwargs: Its keyword arguments, the same on every rank.
        np: The number of processes.
        hosts: ``host:slots`` of this host; None for this host with as many slots as needed.
        engine: ``auto``, ``horovod``, ``torch``, ``mpi`` or ``serial``.
        verbose: Whether to show the ranks' lines, each with its label.

    Returns:
        One result for each rank, in the order of ranks.

    Raises:
        LaunchError: Something cannot be sent to other processes (the message names the variable), a rank failed (the
            message names the first one and its error), or the job cannot start.
    """
    if hosts is not None and not all(host.is_here for host in parse_hosts(hosts, np)):
        raise LaunchError(f"hosts {hosts!r}: a function runs on this host only; for others write a script: hvdkit run")
    with Running(fn, args, kwargs or {}, np, engine, hosts, shown=verbose) as running:
        return running.results()


class Running:
    """A function that processes call; leaving ``with`` ends those that are not done.

    Args:
        fn, args, kwargs, np, engine, hosts: As for :func:`run`.
        shown: Whether to show the ranks' lines.

    Raises:
        LaunchError: Something cannot be sent to other processes.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None = None,
        np: int = 2,
        engine: str = "auto",
        hosts: str | None = None,
        shown: bool = False,
    ) -> None:
        data = pack(fn, args, kwargs or {})
        self._size = np
        self._place = tempfile.TemporaryDirectory(prefix="hvdkit-call-")
        folder = self._folder = Path(self._place.name)
        (folder / "function.pickle").write_bytes(data)
        (folder / "path.json").write_text(json.dumps([os.path.abspath(entry) for entry in sys.path]))
        options = ["-np", str(np), "--engine", engine, *(["-H", hosts] if hosts is not None else [])]
        with self._lines.open("w") as lines:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "hvdkit", "run", *options, "-m", "hvdkit.tools.launch.call", str(folder)],
                stdin=subprocess.DEVNULL,
                # what nobody reads would fill a pipe
                stdout=subprocess.PIPE if shown else lines,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env=child_environment(HVDKIT_CALLER=str(os.getpid())),
                start_new_session=True,
            )

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *error: object) -> None:
        if self._process.poll() is None:
            _interrupt(self._process)
        self._place.cleanup()

    def results(self) -> list[Any]:
        """Wait for the end; return what each rank returned.

        Raises:
            LaunchError: A rank failed, or the job could not start.
        """
        last = ""
        for line in self._process.stdout or ():
            last = line.strip()
            sys.stdout.write(line)
        if self._process.wait() != 0:
            last = last or self._last_line()
            code = self._process.returncode
            raise LaunchError(last.removeprefix(_ERROR) or f"the job ended with exit code {code}")
        return [_result(self._folder, rank) for rank in range(self._size)]

    @property
    def _lines(self) -> Path:
        return self._folder / "lines"

    def _last_line(self) -> str:
        return self._lines.read_text(errors="replace").strip().rpartition("\n")[2].strip()


def _interrupt(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGINT)
    try:
        process.communicate(timeout=_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _result(folder: Path, rank: int) -> Any:
    path = folder / f"result-{rank}.pickle"
    if not path.is_file():
        raise LaunchError(f"rank {rank} ended without a result; did it call sys.exit or os._exit?")
    return pickle.loads(path.read_bytes())
