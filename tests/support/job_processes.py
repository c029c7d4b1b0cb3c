"""The processes of a job that a test has started, known by a token in their environment."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
# a launcher around the tests, or the machine's thread settings, are not the job's
_NOT_THE_JOBS = ("OMPI_", "PMI", "HOROVOD_", "HVDKIT_", "OMP_NUM", "MKL_NUM", "TF_NUM", "RANK", "WORLD_SIZE")


def environment(token: str, **changes: str) -> dict[str, str]:
    """Return the environment of a job."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_THE_JOBS)}
    path = os.pathsep.join(filter(None, (str(ROOT), clean.get("PYTHONPATH"))))
    return {**clean, "PYTHONPATH": path, "JOB_TOKEN": token, **changes}


def processes(token: str) -> dict[int, str]:
    """Return its living processes, with their command lines."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            ours = f"JOB_TOKEN={token}".encode() in (folder / "environ").read_bytes()
            zombie = (folder / "stat").read_text().rpartition(")")[2].split()[0] in "ZX"
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except (OSError, IndexError):
            continue
        if ours and not zombie:
            found[int(folder.name)] = command
    return found
