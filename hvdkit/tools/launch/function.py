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
    data = pack(fn, args, kwargs or {})
    with tempfile.TemporaryDirectory(prefix="hvdkit-call-") as name:
        folder = Path(name)
        (folder / "function.pickle").write_bytes(data)
        (folder / "path.json").write_text(json.dumps([os.path.abspath(entry) for entry in sys.path]))
        options = ["-np", str(np), "--engine", engine, *(["-H", hosts] if hosts is not None else [])]
        _start([*options, "-m", "hvdkit.tools.launch.call", name], verbose)
        return [_result(folder, rank) for rank in range(np)]


def _start(arguments: list[str], verbose: bool) -> None:
    """Run ``hvdkit run`` and raise its last line if it fails."""
    command = [sys.executable, "-m", "hvdkit", "run", *arguments]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=child_environment(HVDKIT_CALLER=str(os.getpid())),
        start_new_session=True,
    )
    last = ""
    try:
        assert process.stdout is not None
        for line in process.stdout:
            last = line.strip()
            if verbose:
                sys.stdout.write(line)
        code = process.wait()
    except BaseException:
        _interrupt(process)
        raise
    if code != 0:
        raise LaunchError(last.removeprefix(_ERROR) or f"the job ended with exit code {code}")


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
