"""Proves an installed Horovod: a real allreduce by two processes, for each framework and controller."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TextIO

from hvdkit.errors import BuildError
from hvdkit.process.environment import child_environment
from hvdkit.tools.horovod_build.allreduce import PROOF
from hvdkit.tools.horovod_build.diagnosis import explain
from hvdkit.tools.horovod_build.machine import scripts_folder
from hvdkit.tools.horovod_build.process import run_logged

_SECONDS = 240
_PROCESSES = 2


def prove(framework: str, controller: str, log: TextIO, mpi_folder: Path | None = None) -> None:
    """Run a sum over two processes that ``horovodrun`` starts.

    Args:
        framework: ``torch`` or ``tf``.
        controller: ``gloo`` or ``mpi``.
        log: Where the output goes.
        mpi_folder: The folder of the ``mpirun`` that belongs to the MPI of the build.

    Raises:
        BuildError: The processes did not start, did not end in time, or got a wrong sum.
    """
    command = [str(scripts_folder() / "horovodrun"), f"--{controller}", "-np", str(_PROCESSES)]
    command += [sys.executable, "-m", "hvdkit.tools.horovod_build.allreduce", framework]
    first = [str(mpi_folder)] if mpi_folder else []
    path = os.pathsep.join([*first, str(scripts_folder()), *os.get_exec_path()])
    code, output = run_logged(command, child_environment(PATH=path), log, _SECONDS)
    if code == 0 and output.count(PROOF) == _PROCESSES:
        return
    if code == 124:
        reason = f"the processes did not end within {_SECONDS} s"
    else:
        reason = explain(output) or f"horovodrun ended with code {code}"
    raise BuildError(
        f"horovod is installed, but an allreduce by {_PROCESSES} processes with {framework} and {controller} "
        f"failed: {reason}; log: {log.name}"
    )
