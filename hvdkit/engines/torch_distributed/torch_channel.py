"""Torch tensors over torch.distributed."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from hvdkit.engines.base import Engine
from hvdkit.engines.channel import Channel
from hvdkit.engines.torch_distributed.engine import TorchDistributedEngine
from hvdkit.engines.torch_distributed.gpu_waits import GpuWaits

_REDUCTION = "the reduction of gradients"


class TorchDistributedChannel(Channel):
    """Sums in place by Gloo on the CPU and NCCL on GPUs, in a process group that no other living channel uses."""

    bf16 = True
    recordable = True

    def __init__(self, engine: Engine) -> None:
        assert isinstance(engine, TorchDistributedEngine)
        super().__init__(engine)
        self._group = engine.group_for(self)
        self._gpu_waits = GpuWaits(engine.control) if torch.cuda.is_available() and engine.control else None

    def start_allreduce(self, flat: Any) -> Any:
        """Start to sum a flat tensor in place."""
        return flat, dist.all_reduce(flat, group=self._group, async_op=True)

    def start_mean(self, flat: Any) -> Any:
        """Start to average a flat tensor in place; NCCL does it without another pass over the memory."""
        if flat.device.type == "cuda" and not flat.is_complex():
            return flat, dist.all_reduce(flat, dist.ReduceOp.AVG, self._group, async_op=True)
        return super().start_mean(flat)

    def wait(self, handle: Any) -> Any:
        """Return the summed tensor."""
        flat, work = handle
        with self.engine.waiting(_REDUCTION):
            work.wait()
        if flat.is_cuda and self._gpu_waits is not None:
            self._gpu_waits.add(_REDUCTION)
        return flat

    def note_replay(self) -> None:
        """Follow the reductions of a recorded update, which wait on the GPU."""
        if self._gpu_waits is not None:
            self._gpu_waits.add(_REDUCTION)

    def allgather(self, tensor: Any) -> Any:
        """Concatenate tensors of all ranks along the first axis."""
        with self.engine.waiting("the gathering of sparse gradients"):
            lengths = torch.zeros(self.size, dtype=torch.int64, device=tensor.device)
            lengths[self.engine.rank] = len(tensor)
            dist.all_reduce(lengths, group=self._group)
            padded = tensor.new_zeros(int(lengths.max()), *tensor.shape[1:])
            padded[: len(tensor)] = tensor
            rows = [torch.empty_like(padded) for _ in range(self.size)]
            if padded.numel():
                dist.all_gather(rows, padded, self._group)
        return torch.cat([row[: int(length)] for row, length in zip(rows, lengths, strict=True)])
