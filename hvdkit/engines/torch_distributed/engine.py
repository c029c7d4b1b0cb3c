"""torch.distributed: Gloo on the CPU, NCCL on GPUs; for torch, and Keras on torch."""

from __future__ import annotations

import itertools
import time
import weakref
from datetime import timedelta
from typing import Any, ClassVar

import numpy as np

from hvdkit.engines.base import Array, Bytes, Engine
from hvdkit.errors import EngineError
from hvdkit.process.environment import LaunchedAs

# the guard ends a job that stands still; the process group's own limit only has to be longer
_LIMIT = timedelta(hours=24)


class TorchDistributedEngine(Engine):
    """Collectives by a process group that torchrun's variables describe, or of one process.

    Raises:
        EngineError: torch is not installed or was built without torch.distributed.
    """

    name: ClassVar[str] = "torch"

    def __init__(self, launched: bool) -> None:
        try:
            import torch
            import torch.distributed as dist
        except ImportError as error:
            raise EngineError("engine 'torch' needs PyTorch; install it with: pip install 'hvdkit[torch]'") from error
        if not dist.is_available():
            raise EngineError("this PyTorch was built without torch.distributed; use engine 'mpi' or 'horovod'")
        self._torch, self._dist = torch, dist
        self._own_group = not dist.is_initialized()
        if self._own_group:
            self._start(launched)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._groups: list[Any] = []
        self._users: list[weakref.ref[object]] = []

    def _start(self, launched: bool) -> None:
        backend = "cpu:gloo,cuda:nccl" if self._torch.cuda.is_available() else "gloo"
        if launched:
            self._dist.init_process_group(backend, timeout=_LIMIT)
        else:
            self._dist.init_process_group(backend, store=self._dist.HashStore(), rank=0, world_size=1)

    def group_for(self, user: object) -> Any:
        """Return a process group that no other living user has on any rank; called by all ranks.

        Two users of one group would have to start their collectives in the same order on all ranks. The group of all
        is the engine's own: Gloo aborts the process where a rank sums gradients and another is at a barrier.
        """
        mine = {number for number, held in enumerate(self._users) if held() is not None}
        taken = set().union(*self.allgather_object(mine))
        free = next(number for number in itertools.count() if number not in taken)
        if free == len(self._groups):
            self._groups.append(self._dist.new_group(timeout=_LIMIT))
        self._users[free : free + 1] = [weakref.ref(user)]
        return self._groups[free]

    def shutdown(self) -> None:
        """End the process group, if it was started here."""
        # Gloo's threads let go of the last tensors a moment after the main thread has them; one that did so while the
        # interpreter ends would abort the process, and destroying the group does not wait for them
        time.sleep(0.2)
        if self._own_group:
            self._dist.destroy_process_group()

    def _do_allreduce(self, flat: Array, op: str) -> Array:
        operations = {"sum": self._dist.ReduceOp.SUM, "min": self._dist.ReduceOp.MIN, "max": self._dist.ReduceOp.MAX}
        self._dist.all_reduce(self._torch.from_numpy(flat), operations[op])
        return flat

    def _do_broadcast(self, flat: Bytes, root: int) -> Bytes:
        if len(flat):
            self._dist.broadcast(self._torch.from_numpy(flat), root)
        return flat

    def _do_allgather(self, flat: Bytes, counts: list[int]) -> Bytes:
        longest = max(counts)
        if longest == 0:
            return np.zeros(0, np.uint8)
        padded = np.zeros(longest, np.uint8)
        padded[: len(flat)] = flat
        rows = self._empty_rows(longest)
        self._dist.all_gather(rows, self._torch.from_numpy(padded))
        return np.concatenate([row.numpy()[:count] for row, count in zip(rows, counts, strict=True)])

    def _empty_rows(self, length: int) -> list[Any]:
        return [self._torch.empty(length, dtype=self._torch.uint8) for _ in range(self.size)]

    def _do_alltoall(self, flat: Bytes, send: list[int], receive: list[int]) -> Bytes:
        joined = np.empty(sum(receive), np.uint8)
        source = self._torch.from_numpy(np.ascontiguousarray(flat))
        self._dist.all_to_all_single(self._torch.from_numpy(joined), source, receive, send)
        return joined


def start(_library: str | None, launched: LaunchedAs) -> TorchDistributedEngine:
    """Start the engine, on torchrun's process group where torchrun started this process."""
    return TorchDistributedEngine(launched=launched.launcher == "torchrun")
