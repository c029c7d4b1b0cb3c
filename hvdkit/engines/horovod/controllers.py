"""Which controllers a compiled Horovod holds, read from its extensions; a copy of this file travels in the wheel."""

from __future__ import annotations

import mmap
from pathlib import Path

# symbols that an extension holds only if the controller was compiled in
_MARKS = {"mpi": b"MPI_Init_thread", "gloo": b"N4gloo"}


def controller_built(horovod: Path, controller: str) -> bool | None:
    """Say whether the extensions in Horovod's folder have a controller, ``mpi`` or ``gloo``; None: not known."""
    for extension in sorted(horovod.glob("t*/mpi_lib*.so")):
        try:
            with extension.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                return content.find(_MARKS[controller]) >= 0
        except (OSError, ValueError):
            continue
    return None


def mpi_built(verbose: bool = False) -> bool | None:  # noqa: ARG001 - Horovod's own function has it
    """Answer what ``horovodrun`` asks, without importing a framework."""
    return controller_built(Path(__file__).parents[1], "mpi")


def gloo_built(verbose: bool = False) -> bool | None:  # noqa: ARG001
    """Answer what ``horovodrun`` asks, without importing a framework."""
    return controller_built(Path(__file__).parents[1], "gloo")
