"""One process of the proof: sums rank + 1 over all ranks. Run as ``python -m`` with the framework's name."""

from __future__ import annotations

import importlib
import sys
from typing import Any

PROOF = "hvdkit: the allreduce is right"


def main(framework: str) -> None:
    """Sum over all ranks, on this process's GPU where Horovod was built for GPUs and there is one each."""
    module = {"torch": "horovod.torch", "tf": "horovod.tensorflow"}[framework]
    hvd = importlib.import_module(module)
    hvd.init()
    value = _torch_value(hvd) if framework == "torch" else _tf_value(hvd)
    total = [float(x) for x in hvd.allreduce(value, op=hvd.Sum)]
    expected = [hvd.size() * (hvd.size() + 1) / 2] * 4
    if hvd.size() < 2 or total != expected:
        sys.exit(f"rank {hvd.rank()} of {hvd.size()}: got {total}, expected {expected}")
    # one write, so that the lines of two ranks do not mix
    sys.stdout.write(f"{PROOF} on {value.device}\n")
    sys.stdout.flush()


def _torch_value(hvd: Any) -> Any:
    torch = importlib.import_module("torch")
    value = torch.full((4,), hvd.rank() + 1.0)
    if hvd.nccl_built() and torch.cuda.device_count() >= hvd.local_size():
        return value.cuda(hvd.local_rank())
    return value


def _tf_value(hvd: Any) -> Any:
    tf = importlib.import_module("tensorflow")
    gpus = tf.config.list_physical_devices("GPU")
    use_gpu = hvd.nccl_built() and len(gpus) >= hvd.local_size()
    with tf.device(f"/GPU:{hvd.local_rank()}" if use_gpu else "/CPU:0"):
        return tf.fill((4,), hvd.rank() + 1.0)


if __name__ == "__main__":
    main(sys.argv[1])
