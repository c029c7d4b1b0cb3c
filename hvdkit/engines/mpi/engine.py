"""mpi4py over whatever MPI is there; for every framework, without a compiler."""

from __future__ import annotations

import atexit
import os
import time
from typing import Any, ClassVar

import numpy as np

from hvdkit.engines.base import Array, Bytes, Engine
from hvdkit.errors import EngineError
from hvdkit.process.environment import LaunchedAs, ensure_home, prefer

# what a wait may take before it pauses, and how long it pauses at most, in seconds
_SOON, _LONGEST_PAUSE = 1e-4, 1e-3


class MpiEngine(Engine):
    """Collectives by MPI, on a communicator of hvdkit's own.

    Attributes:
        communicator: A duplicate of ``MPI.COMM_WORLD``.

    Raises:
        EngineError: mpi4py is not installed, or finds no MPI library.
    """

    name: ClassVar[str] = "mpi"

    def __init__(self) -> None:
        ensure_home()
        # read when mpi4py is imported: a rank that waits lets others, and its own framework's threads, have the core
        prefer("OMPI_MCA_mpi_yield_when_idle", "1")
        try:
            import mpi4py

            # by hvdkit, since mpi4py would do it in children too that the script has forked, which hang in it
            mpi4py.rc.finalize = False
            from mpi4py import MPI
        except (ImportError, RuntimeError) as error:
            raise EngineError(
                f"engine 'mpi' cannot start ({str(error).splitlines()[0]}); install it with: pip install 'hvdkit[mpi]'"
            ) from error
        self._mpi = MPI
        atexit.register(_finalise, MPI, os.getpid())
        self.communicator = MPI.COMM_WORLD.Dup()
        self.rank = self.communicator.Get_rank()
        self.size = self.communicator.Get_size()
        self._crowded = bool(self.communicator.allreduce(self._lacks_cores(), MPI.LOR))

    def shutdown(self) -> None:
        """Free the communicator; MPI itself is finalised at exit."""
        self.communicator.Free()

    def meet(self, communicator: Any) -> None:
        """Wait until every rank is here; asleep where no core is to spare, since MPI's own waits are loops."""
        if self._crowded:
            self.wait(communicator.Ibarrier())

    def wait(self, request: Any) -> None:
        """Wait for a request; asleep where no core is to spare."""
        if not self._crowded:
            request.Wait()
            return
        begin = time.perf_counter()
        while not request.Test():
            waited = time.perf_counter() - begin
            if waited > _SOON:
                time.sleep(min(waited / 32, _LONGEST_PAUSE))

    def _lacks_cores(self) -> bool:
        """Say whether the ranks of this node leave it no core to spare; each may be bound to some."""
        node = self.communicator.Split_type(self._mpi.COMM_TYPE_SHARED)
        cores = set().union(*node.allgather(os.sched_getaffinity(0)))
        crowded = len(cores) <= node.Get_size()
        node.Free()
        return crowded

    def _operation(self, op: str) -> Any:
        return {"sum": self._mpi.SUM, "min": self._mpi.MIN, "max": self._mpi.MAX}[op]

    def _do_allreduce(self, flat: Array, op: str) -> Array:
        # every verb begins with one, and that is where ranks wait for each other
        self.meet(self.communicator)
        self.communicator.Allreduce(self._mpi.IN_PLACE, flat, self._operation(op))
        return flat

    def _do_broadcast(self, flat: Bytes, root: int) -> Bytes:
        self.communicator.Bcast(flat, root)
        return flat

    def _do_allgather(self, flat: Bytes, counts: list[int]) -> Bytes:
        joined = np.empty(sum(counts), np.uint8)
        self.communicator.Allgatherv(flat, (joined, counts))
        return joined

    def _do_alltoall(self, flat: Bytes, send: list[int], receive: list[int]) -> Bytes:
        joined = np.empty(sum(receive), np.uint8)
        self.communicator.Alltoallv((flat, send), (joined, receive))
        return joined


def _finalise(mpi: Any, process: int) -> None:
    """Finalise MPI at the end of the process that has started it."""
    if os.getpid() == process and not mpi.Is_finalized():
        mpi.Finalize()


def start(_library: str | None, _launched: LaunchedAs) -> MpiEngine:
    """Start the engine."""
    return MpiEngine()
