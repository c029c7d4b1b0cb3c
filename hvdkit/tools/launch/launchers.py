"""The command line of each launcher: horovodrun, torchrun, mpiexec and plain Python."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

from hvdkit.engines.horovod import installed as horovod_info
from hvdkit.errors import EngineError, LaunchError
from hvdkit.process.environment import keras_backend
from hvdkit.tools.launch.engine import find_mpiexec
from hvdkit.tools.launch.hosts import Host

CONTROLLERS = ("gloo", "mpi")


@dataclass(frozen=True)
class Job:
    """What to start.

    Attributes:
        processes: The number of ranks.
        hosts: Where, with the number of processes on each.
        engine: ``horovod``, ``torch``, ``mpi`` or ``serial``.
        program: The script and its arguments, or ``-m``, a module and its arguments.
        controller: ``gloo``, ``mpi`` or None for gloo where it is built; for horovod only.
        launcher_args: Passed to the launcher as they are.
        log_dir: Folder for complete log files, one for each rank.
    """

    processes: int
    hosts: tuple[Host, ...]
    engine: str
    program: tuple[str, ...]
    controller: str | None = None
    launcher_args: tuple[str, ...] = ()
    log_dir: str | None = None

    @property
    def is_local(self) -> bool:
        """Whether all processes run on this host."""
        return all(host.is_here for host in self.hosts)

    @property
    def processes_here(self) -> int:
        """How many of the processes run on this host; on a host that only launches, as many as on the fullest."""
        here = sum(host.slots for host in self.hosts if host.is_here)
        return here or max(host.slots for host in self.hosts)

    @property
    def launcher(self) -> str:
        """The name of the program that starts the ranks."""
        return {"horovod": "horovodrun", "torch": "torchrun", "mpi": "mpiexec", "serial": "python"}[self.engine]


def command_line(job: Job) -> list[str]:
    """Return the command that starts all ranks of a job, each through the child module.

    Raises:
        EngineError: Horovod lacks the controller.
        LaunchError: The engine does not start processes on other hosts.
    """
    if job.controller is not None and job.engine != "horovod":
        raise LaunchError(f"--controller is for engine horovod; this job uses engine {job.engine}")
    if job.engine != "horovod" and not job.is_local:
        raise LaunchError(_other_hosts(job))
    return _BY_ENGINE[job.engine](job)


def _horovod(job: Job) -> list[str]:
    hosts = ",".join(str(host) for host in job.hosts)
    launcher = [sys.executable, "-m", "horovod.runner.launch", "-np", str(job.processes), "-H", hosts]
    # horovodrun's parser stumbles over script arguments that look like its own, so they travel as one word
    child = [sys.executable, "-m", "hvdkit.tools.launch.child", json.dumps(job.program)]
    # horovodrun itself loads TensorFlow, which crashes where its Keras runs on torch; that choice is the ranks' alone
    launcher_only = ["env", "KERAS_BACKEND=tensorflow"]
    chosen = keras_backend()
    ranks_only = ["env", f"KERAS_BACKEND={chosen}"] if chosen else ["env", "-u", "KERAS_BACKEND"]
    return [*launcher_only, *launcher, f"--{_controller(job)}", *job.launcher_args, *ranks_only, *child]


def _controller(job: Job) -> str:
    horovod_info.check_controllers()
    if job.controller is None:
        return "mpi" if horovod_info.gloo_built() is False else "gloo"
    if job.controller == "mpi" and horovod_info.mpi_built() is False:
        raise EngineError("this Horovod was built without MPI; rebuild it with: hvdkit build-horovod --mpi on")
    if job.controller == "gloo" and horovod_info.gloo_built() is False:
        raise EngineError("this Horovod was built without Gloo; use --controller mpi")
    return job.controller


def _torch(job: Job) -> list[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={job.processes}"]
    return [*launcher, *job.launcher_args, "-m", "hvdkit.tools.launch.child", *job.program]


def _mpi(job: Job) -> list[str]:
    mpiexec = find_mpiexec()
    if mpiexec is None:
        raise EngineError("engine mpi: no mpiexec was found; pip install 'hvdkit[mpi]'")
    options = ["--oversubscribe", "--bind-to", "none", "--map-by", "slot"] if _is_open_mpi(mpiexec) else []
    launcher = [mpiexec, "-n", str(job.processes), *options]
    return [*launcher, *job.launcher_args, sys.executable, "-m", "hvdkit.tools.launch.child", *job.program]


def _serial(job: Job) -> list[str]:
    if job.launcher_args:
        raise LaunchError("--launcher-args: engine serial has no launcher to pass them to")
    return [sys.executable, "-m", "hvdkit.tools.launch.child", *job.program]


_BY_ENGINE: dict[str, Callable[[Job], list[str]]] = {
    "horovod": _horovod,
    "torch": _torch,
    "mpi": _mpi,
    "serial": _serial,
}


def root_variables() -> dict[str, str]:
    """Return the variables without which Open MPI refuses to run for root."""
    if os.geteuid() != 0:
        return {}
    return {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def _is_open_mpi(mpiexec: str) -> bool:
    shown = subprocess.run([mpiexec, "--version"], capture_output=True, text=True, check=False, timeout=60)
    return any(name in shown.stdout for name in ("Open MPI", "OpenRTE", "prte", "PRRTE"))


def _other_hosts(job: Job) -> str:
    names = ", ".join(host.name for host in job.hosts if not host.is_here)
    program = shlex.join(job.program)
    if job.engine == "mpi":
        hosts = ",".join(str(host) for host in job.hosts)
        commands = [f"mpirun -np {job.processes} -H {hosts} -x PATH --bind-to none --map-by slot python {program}"]
        where = "run this once, on one of the hosts"
    else:
        commands = [
            f"{host.name}: torchrun --nnodes={len(job.hosts)} --node-rank={number} --nproc-per-node={host.slots} "
            f"--master-addr={job.hosts[0].name} --master-port=29500 {program}"
            for number, host in enumerate(job.hosts)
        ]
        where = "run on each host"
    listing = "".join(f"\n  {command}" for command in commands)
    return f"engine {job.engine} starts processes on this host only, not on {names}; {where}:{listing}"
