"""Engine ``serial``: one process."""

from __future__ import annotations

from hvdkit.engines.spec import Spec
from hvdkit.engines.start import Start
from hvdkit.errors import LaunchError

_CHANNEL = "hvdkit.engines.serial.channel:SerialChannel"


def _command(start: Start) -> list[str]:
    start.refuse_other_hosts("start it there", ["python"])
    if start.launcher_args:
        raise LaunchError("--launcher-args: engine serial has no launcher to pass them to")
    return start.rank_command


SERIAL = Spec(
    name="serial",
    channels=dict.fromkeys(("torch", "tf", "jax"), _CHANNEL),
    launchers=("plain",),
    started_by="python",
    module="hvdkit.engines.serial.engine:start",
    obstacle=lambda _library, _launcher: "",
    presence=lambda _library: "it is always there",
    command=_command,
)
