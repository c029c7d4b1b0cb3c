"""Engine ``mpi``: mpi4py over whatever MPI is there, for every framework."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from hvdkit.engines.spec import Spec
from hvdkit.engines.start import Start
from hvdkit.errors import EngineError
from hvdkit.process.environment import search_path


def find_mpiexec() -> str | None:
    """Return the MPI launcher: the one beside the Python interpreter, else the first on PATH, else None."""
    for name in ("mpiexec", "mpirun"):
        beside = Path(sys.executable).with_name(name)
        if beside.is_file():
            return str(beside)
    return shutil.which("mpiexec") or shutil.which("mpirun")


def launcher_variables(folder: str) -> dict[str, str]:
    """Return what an MPI launcher needs, also where another launcher starts it.

    Args:
        folder: Where it may keep its files: what a killed mpirun leaves behind stops a later one that happens to get
            its process id.
    """
    # `horovodrun --mpi` looks for mpirun on PATH; the one beside the interpreter is a last resort
    path = os.pathsep.join((search_path(), os.path.dirname(sys.executable)))
    return {**root_variables(), "PRTE_MCA_prte_tmpdir_base": folder, "PATH": path}


def root_variables() -> dict[str, str]:
    """Return the variables without which Open MPI refuses to run for root."""
    if os.geteuid() != 0:
        return {}
    return {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def _obstacle(_library: str | None, launcher: str | None) -> str:
    ready = find_spec("mpi4py") is not None and (launcher is not None or find_mpiexec() is not None)
    return "" if ready else "mpi4py or mpiexec is not installed; pip install 'hvdkit[mpi]'"


def _command(start: Start) -> list[str]:
    hosts = ",".join(str(host) for host in start.hosts)
    start.refuse_other_hosts(
        "run this once, on one of the hosts",
        [f"mpirun -np {start.processes} -H {hosts} -x PATH --bind-to none --map-by slot python"],
    )
    mpiexec = find_mpiexec()
    if mpiexec is None:
        raise EngineError("engine mpi: no mpiexec was found; pip install 'hvdkit[mpi]'")
    options = ["--oversubscribe", "--bind-to", "none", "--map-by", "slot"] if _is_open_mpi(mpiexec) else []
    return [mpiexec, "-n", str(start.processes), *options, *start.launcher_args, *start.rank_command]


def _is_open_mpi(mpiexec: str) -> bool:
    shown = subprocess.run([mpiexec, "--version"], capture_output=True, text=True, check=False, timeout=60)
    return any(name in shown.stdout for name in ("Open MPI", "OpenRTE", "prte", "PRRTE"))


MPI = Spec(
    name="mpi",
    channels={
        "torch": "hvdkit.engines.mpi.torch_channel:TorchMpiChannel",
        "tf": "hvdkit.engines.mpi.tf_channel:TfMpiChannel",
        "jax": "hvdkit.engines.mpi.jax_channel:JaxMpiChannel",
    },
    launchers=("plain", "mpirun"),
    started_by="mpiexec",
    module="hvdkit.engines.mpi.engine:start",
    obstacle=_obstacle,
    presence=lambda _library: "mpi4py and mpiexec are installed",
    command=_command,
    variables=launcher_variables,
)
