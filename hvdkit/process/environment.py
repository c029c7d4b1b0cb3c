"""The one place where environment variables are read: who started this process, and what the user asked for."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass

from hvdkit.errors import LaunchError
from hvdkit.process.watch.judge import Limits


@dataclass(frozen=True)
class LaunchedAs:
    """What a launcher's environment says about this process.

    Attributes:
        launcher: ``plain``, ``horovodrun``, ``torchrun`` or ``mpirun``.
        rank: The rank that the launcher gave, 0 for ``plain``.
        size: The number of processes that it started, 1 for ``plain``.
    """

    launcher: str
    rank: int = 0
    size: int = 1


# launcher, its rank variable, its size variable; the first whose variables are set wins, and horovodrun comes
# before mpirun because `horovodrun --mpi` sets both
_LAUNCHERS = (
    ("horovodrun", "HOROVOD_RANK", "HOROVOD_SIZE"),
    ("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("mpirun", "PMI_RANK", "PMI_SIZE"),
    ("torchrun", "RANK", "WORLD_SIZE"),
)


def launched_as(environ: Mapping[str, str] = os.environ) -> LaunchedAs:
    """Read from the environment which launcher started this process.

    Raises:
        LaunchError: A launcher's variable is not a number.
    """
    for launcher, rank_name, size_name in _LAUNCHERS:
        if rank_name in environ and size_name in environ:
            return LaunchedAs(launcher, _number(environ, rank_name), _number(environ, size_name))
    return LaunchedAs("plain")


def _number(environ: Mapping[str, str], name: str) -> int:
    try:
        return int(environ[name])
    except ValueError:
        raise LaunchError(
            f"environment variable {name} is {environ[name]!r}, not a number; unset it or use a launcher"
        ) from None


def requested_engine(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the engine that ``hvdkit run --engine`` chose for this job, or None."""
    return environ.get("HVDKIT_ENGINE")


def node_name(environ: Mapping[str, str] = os.environ) -> str:
    """Return the name of this node; ``HVDKIT_NODE`` overrides the host name where containers share one."""
    return environ.get("HVDKIT_NODE") or socket.gethostname()


def failure_dir(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the folder into which ``hvdkit run`` wants a rank's last error written, or None."""
    return environ.get("HVDKIT_FAILURE_DIR")


def user_set_threads(environ: Mapping[str, str] = os.environ) -> bool:
    """Say whether the user chose the number of CPU threads himself."""
    return any(name in environ for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TF_NUM_INTRAOP_THREADS"))


def cache_dir(environ: Mapping[str, str] = os.environ) -> str:
    """Return the folder for caches: ``HVDKIT_CACHE``, else ``~/.cache/hvdkit``."""
    return environ.get("HVDKIT_CACHE") or os.path.join(os.path.expanduser("~"), ".cache", "hvdkit")


def keras_backend(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the library that the user wants Keras 3 to run on, or None if the variable is not set."""
    return environ.get("KERAS_BACKEND")


def keras_torch_device(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the device on which the user wants Keras on torch, or None if the variable is not set."""
    return environ.get("KERAS_TORCH_DEVICE")


def cuda_visible_devices(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the GPUs that a scheduler or the user shows to this process, or None for all."""
    return environ.get("CUDA_VISIBLE_DEVICES")


def library_of(framework: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return the library whose tensors a framework has: Keras 3 runs on the one that the user wants, or TensorFlow."""
    if framework != "keras":
        return framework
    backend = keras_backend(environ) or "tensorflow"
    return {"tensorflow": "tf"}.get(backend, backend)


def child_environment(**changes: str) -> dict[str, str]:
    """Return a copy of this process's environment with the changes, for a child process."""
    return {**os.environ, **changes}


def rank_log_dir(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the folder for complete per-rank log files that ``hvdkit run --log-dir`` named, or None."""
    return environ.get("HVDKIT_LOG_DIR")


def restarts(environ: Mapping[str, str] = os.environ) -> int:
    """Return how often ``hvdkit run --max-restarts`` has started this job again."""
    return _number(environ, "HVDKIT_RESTARTS") if "HVDKIT_RESTARTS" in environ else 0


def end_of_allocation(environ: Mapping[str, str] = os.environ) -> float | None:
    """Return when Slurm ends this job, in seconds of ``time.time()``, or None if nobody says."""
    return float(_number(environ, "SLURM_JOB_END_TIME")) if "SLURM_JOB_END_TIME" in environ else None


def terminal_columns(environ: Mapping[str, str] = os.environ) -> int | None:
    """Return the width of the terminal on which ``hvdkit run`` shows its output, or None if that is no terminal."""
    return _number(environ, "HVDKIT_TERMINAL") if "HVDKIT_TERMINAL" in environ else None


def calling_process(environ: Mapping[str, str] = os.environ) -> int | None:
    """Return the process whose end must also end ``hvdkit run``: the one that called ``hvdkit.run``, or None."""
    return _number(environ, "HVDKIT_CALLER") if "HVDKIT_CALLER" in environ else None


def search_path(environ: Mapping[str, str] = os.environ) -> str:
    """Return the folders in which commands are looked for."""
    return environ.get("PATH", os.defpath)


def prefer(name: str, value: str, environ: MutableMapping[str, str] = os.environ) -> None:
    """Set a library's variable, unless the user has set it."""
    environ.setdefault(name, value)


def ensure_home() -> None:
    """Set HOME from the user database where it is missing, as in services: no command of Open MPI runs without it."""
    prefer("HOME", os.path.expanduser("~"))


def stuck_limits(given: Limits, environ: Mapping[str, str] = os.environ) -> Limits:
    """Return how long ranks may wait for another: ``HVDKIT_REPORT_AFTER`` and ``HVDKIT_STUCK_AFTER``, or what is given.

    Raises:
        LaunchError: One of them is no number of seconds above 0.
    """
    return Limits(
        _seconds(environ, "HVDKIT_REPORT_AFTER", "report_after", given.report),
        _seconds(environ, "HVDKIT_STUCK_AFTER", "stuck_after", given.stuck),
    )


def _seconds(environ: Mapping[str, str], name: str, argument: str, given: float) -> float:
    text = environ.get(name)
    try:
        seconds = float(given if text is None else text)
    except (TypeError, ValueError):
        seconds = -1.0
    if not 0.0 < seconds < float("inf"):
        which = f"{argument} is {given!r}" if text is None else f"environment variable {name} is {text!r}"
        raise LaunchError(f"{which}, not a number of seconds above 0")
    return seconds
