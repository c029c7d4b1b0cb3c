"""Engine ``horovod``: the reference, for PyTorch, TensorFlow and Keras on them."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec

from hvdkit.engines.horovod.installed import built_for, check_controllers, gloo_built, mpi_built, rebuild_command
from hvdkit.engines.mpi.spec import launcher_variables
from hvdkit.engines.spec import Spec
from hvdkit.engines.start import Start
from hvdkit.errors import EngineError
from hvdkit.process.environment import keras_backend

_CHANNELS = {
    "torch": "hvdkit.engines.horovod.torch_channel:TorchHorovodChannel",
    "tf": "hvdkit.engines.horovod.tf_channel:TfHorovodChannel",
}


def bindings(library: str | None) -> tuple[str, ...]:
    """Return the libraries through whose extension a program may use Horovod."""
    return (library,) if library is not None else tuple(_CHANNELS)


def obstacle(library: str | None, launcher: str | None) -> str:
    """Return why Horovod cannot serve a library under a launcher, with the remedy; empty if it can."""
    if find_spec("horovod") is None:
        return f"Horovod is not installed; build it with: {rebuild_command(library)}"
    if not any(built_for(name) for name in bindings(library)):
        if library is None:
            return "this Horovod was built for no framework; rebuild it with: hvdkit build-horovod"
        return f"Horovod was built without {library}; rebuild it with: {rebuild_command(library)}"
    if launcher == "mpirun" and mpi_built() is False:
        return "this Horovod was built without MPI; rebuild it with: hvdkit build-horovod --mpi on"
    return ""


def _command(start: Start) -> list[str]:
    hosts = ",".join(str(host) for host in start.hosts)
    launcher = [sys.executable, "-m", "horovod.runner.launch", "-np", str(start.processes), "-H", hosts]
    # horovodrun's parser stumbles over script arguments that look like its own, so they travel as one word
    rank_command = [*start.supervisor, json.dumps(start.program)]
    # another tool's horovodrun loads TensorFlow, which crashes where its Keras runs on torch; that choice is the ranks'
    launcher_only = ["env", "KERAS_BACKEND=tensorflow"]
    chosen = keras_backend()
    ranks_only = ["env", f"KERAS_BACKEND={chosen}"] if chosen else ["env", "-u", "KERAS_BACKEND"]
    return [*launcher_only, *launcher, f"--{_controller(start)}", *start.launcher_args, *ranks_only, *rank_command]


def _controller(start: Start) -> str:
    check_controllers()
    if start.controller is None:
        return "mpi" if gloo_built() is False else "gloo"
    if start.controller == "mpi" and mpi_built() is False:
        raise EngineError("this Horovod was built without MPI; rebuild it with: hvdkit build-horovod --mpi on")
    if start.controller == "gloo" and gloo_built() is False:
        raise EngineError("this Horovod was built without Gloo; use --controller mpi")
    return start.controller


HOROVOD = Spec(
    name="horovod",
    channels=_CHANNELS,
    launchers=("plain", "horovodrun", "mpirun"),
    started_by="horovodrun",
    module="hvdkit.engines.horovod.engine:start",
    obstacle=obstacle,
    presence=lambda library: f"Horovod is built for {library}" if library else "Horovod is installed",
    command=_command,
    controllers=("gloo", "mpi"),
    variables=launcher_variables,
)
