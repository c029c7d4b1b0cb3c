"""Engine ``torch``: torch.distributed, for PyTorch and for Keras on it."""

from __future__ import annotations

import sys
from importlib.util import find_spec

from hvdkit.engines.spec import Spec
from hvdkit.engines.start import Start


def _obstacle(_library: str | None, _launcher: str | None) -> str:
    return "" if find_spec("torch") is not None else "PyTorch is not installed; pip install torch"


def _command(start: Start) -> list[str]:
    start.refuse_other_hosts(
        "run on each host",
        [
            f"{host.name}: torchrun --nnodes={len(start.hosts)} --node-rank={number} --nproc-per-node={host.slots} "
            f"--master-addr={start.hosts[0].name} --master-port=29500"
            for number, host in enumerate(start.hosts)
        ],
    )
    # without the address torchrun looks this host's name up, which not every machine can
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
    launcher.append(f"--nproc-per-node={start.processes}")
    # torchrun puts the interpreter before the program itself
    return [*launcher, *start.launcher_args, *start.rank_command[1:]]


TORCH = Spec(
    name="torch",
    channels={"torch": "hvdkit.engines.torch_distributed.torch_channel:TorchDistributedChannel"},
    launchers=("plain", "torchrun"),
    started_by="torchrun",
    module="hvdkit.engines.torch_distributed.engine:start",
    obstacle=_obstacle,
    presence=lambda _library: "PyTorch is installed, Horovod is not built for it",
    command=_command,
)
