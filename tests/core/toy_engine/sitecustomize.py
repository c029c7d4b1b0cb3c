"""Registers the toy engine in every process that has this folder on PYTHONPATH."""

import sys
from pathlib import Path

from hvdkit.engines.spec import Spec
from hvdkit.engines.table import SPECS

LAUNCHER = str(Path(__file__).with_name("toyrun.py"))

SPECS.insert(
    1,
    Spec(
        name="toy",
        channels={"torch": "toy:ToyTorchChannel"},
        launchers=("plain", "mpirun"),
        started_by="toyrun",
        module="toy:start",
        obstacle=lambda _library, _launcher: "",
        presence=lambda _library: "there is a toy",
        command=lambda start: [sys.executable, LAUNCHER, str(start.processes), *start.rank_command],
    ),
)
