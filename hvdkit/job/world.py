"""Who am I: rank, size and node of this process, and the collectives of the whole job."""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from numpy.typing import ArrayLike

from hvdkit.engines.base import Array, Engine
from hvdkit.engines.choice import choose, create
from hvdkit.engines.table import libraries
from hvdkit.errors import EngineError, HvdkitError, LaunchError
from hvdkit.process import arrivals, failures
from hvdkit.process.control import ControlChannel
from hvdkit.process.environment import node_name, stuck_limits
from hvdkit.process.forks import prepare_forks
from hvdkit.process.watch.judge import Limits
from hvdkit.recipe.plan import local_ranks

_current: World | None = None


class World:
    """The processes of this job, seen from one of them.

    Attributes:
        rank: This process, 0 to size - 1.
        size: The number of processes.
        local_rank: This process among those of its node; for devices and per-node work only.
        local_size: The number of processes on this node.
        node: The number of this node, 0 to nodes - 1.
        nodes: The number of nodes.
        reason: Why this engine was taken.
        guard: Whether data and weights are compared between ranks, so that a forgotten step is found.
        rate_factor: By what ``scale_lr`` has last scaled a learning rate; None before it.
    """

    def __init__(
        self, engine: Engine, reason: str, library: str | None, guard: bool = True, limits: Limits | None = None
    ) -> None:
        self._engine = engine
        self._process = os.getpid()
        self._limits = limits
        self.reason = reason
        self.guard = guard
        self.rate_factor: float | None = None
        self.library = library
        self.rank, self.size = engine.rank, engine.size
        self.local_rank, self.local_size, self.node, self.nodes = engine.placement() or self._gathered_placement()
        self._control: ControlChannel | None = None
        self._before_leaving: list[weakref.WeakMethod[Callable[[], None]]] = []
        if not engine.placement():
            self.connect()

    def _gathered_placement(self) -> tuple[int, int, int, int]:
        names = self._engine.allgather_object(node_name())
        return (*local_ranks(names)[self.rank], len(set(names)))

    def connect(self) -> None:
        """Open the control channel, once; the first collective does it by itself."""
        if self.size > 1 and self._control is None:
            arrivals.arrive(arrivals.FIRST_COLLECTIVE)
            alone = self.nodes == 1
            self._control = ControlChannel(self.rank, self.size, self._engine.broadcast_object, alone, self._limits)
            self._engine.control = self._control
            failures.announce_on(self.rank, self._control)
            arrivals.pass_through(arrivals.FIRST_COLLECTIVE)

    @property
    def engine(self) -> Engine:
        """What moves the bytes."""
        self.connect()
        return self._engine

    @property
    def is_root(self) -> bool:
        """Whether this is rank 0, the one that writes files and shows progress."""
        return self.rank == 0

    @property
    def control(self) -> ControlChannel | None:
        """The channel on which ranks leave, fail and show that they live; None on one process."""
        return self._control

    def allreduce(self, array: ArrayLike, op: str = "mean") -> Array:
        """Reduce an array over all ranks; see :meth:`Engine.allreduce`."""
        return self.engine.allreduce(array, op)

    def reduce(self, array: ArrayLike, op: str = "mean", root: int = 0) -> Array | None:
        """Reduce an array over all ranks for ``root`` alone; see :meth:`Engine.reduce`."""
        return self.engine.reduce(array, op, root)

    def allgather(self, array: ArrayLike) -> Array:
        """Concatenate arrays of all ranks; see :meth:`Engine.allgather`."""
        return self.engine.allgather(array)

    def gather(self, array: ArrayLike, root: int = 0) -> list[Array] | None:
        """Collect one array per rank on ``root``; see :meth:`Engine.gather`."""
        return self.engine.gather(array, root)

    def scatter(self, arrays: Sequence[ArrayLike] | None, root: int = 0) -> Array:
        """Give every rank its entry of the list of ``root``; see :meth:`Engine.scatter`."""
        return self.engine.scatter(arrays, root)

    def alltoall(self, array: ArrayLike) -> Array:
        """Exchange parts of arrays between all ranks; see :meth:`Engine.alltoall`."""
        return self.engine.alltoall(array)

    def broadcast(self, array: ArrayLike, root: int = 0) -> Array:
        """Return the array of ``root`` on every rank; see :meth:`Engine.broadcast`."""
        return self.engine.broadcast(array, root)

    def broadcast_object(self, value: Any, root: int = 0) -> Any:
        """Return the object of ``root`` on every rank; it must be picklable."""
        return self.engine.broadcast_object(value, root)

    def barrier(self) -> None:
        """Wait until every rank has come here."""
        self.engine.barrier()

    def agree(self, value: Any) -> Any:
        """Return rank 0's value on every rank, for decisions that all must take alike."""
        return self.engine.broadcast_object(value, 0)

    def root_only(self, action: Any) -> Any:
        """Run ``action()`` on rank 0 and return its result everywhere; its error is raised everywhere.

        Raises:
            HvdkitError: What ``action`` raised on rank 0, of the same class.
            CollectiveError: ``action`` calls a collective, which the other ranks would not.
        """
        result, problem = None, None
        if self.is_root:
            try:
                with self.engine.alone(f"root_only({getattr(action, '__name__', type(action).__name__)})"):
                    result = action()
            except HvdkitError as error:
                error.rank = self.rank
                problem = error
        result, problem = self.engine.broadcast_object((result, problem), 0)
        if problem is not None:
            raise problem
        return result

    def before_leaving(self, action: Callable[[], None]) -> None:
        """Call a method when the job is left, before its engine is shut down, if its object is still there."""
        self._before_leaving.append(weakref.WeakMethod(action))

    def shutdown(self) -> None:
        """Leave the job in good order; called by all ranks, and by itself at exit."""
        global _current
        # a child that the script has forked is none of the job's processes
        if _current is not self or os.getpid() != self._process:
            return
        _current = None
        if self._control is not None:
            self._control.leave()
        for held in self._before_leaving:
            action = held()
            if action is not None:
                action()
        self._engine.shutdown()


def init(
    engine: str = "auto", library: str | None = None, guard: bool | None = None, limits: Limits | None = None
) -> World:
    """Step 1: join the job. A second call returns the same world.

    Args:
        engine: ``auto``, ``horovod``, ``torch``, ``mpi`` or ``serial``.
        library: The tensor library that is trained, ``torch``, ``tf`` or ``jax``; None for none.
        guard: Compare data and weights between ranks now and then, and stop where they differ; None leaves it as it is,
            at first True.
        limits: How long ranks may wait for another, where the environment does not say.

    Raises:
        EngineError: The engine is unknown, not installed, or not built for the library; or another library is
            already in use in this process.
        LaunchError: Launcher and engine do not fit, or disagree on the number of processes.
    """
    global _current
    failures.watch_exceptions()
    prepare_forks()
    if library not in (None, *libraries()):
        raise EngineError(f"library {library!r} is unknown; use {', '.join(libraries())} or None")
    if _current is not None:
        return _same_world(_current, engine, library, guard)
    _refuse_two_libraries(library)
    choice = choose(engine, library)
    limits = stuck_limits(limits or Limits())
    arrivals.arrive(arrivals.INIT)
    _current = World(create(choice, library), choice.reason, library, guard is not False, limits)
    arrivals.pass_through(arrivals.INIT)
    failures.announce_on(_current.rank, _current.control)
    atexit.register(_leave_at_exit)
    return _current


def current() -> World:
    """Return the world that ``init`` made.

    Raises:
        LaunchError: There is none yet.
    """
    if _current is None:
        raise LaunchError("hvdkit is not initialised; call hvdkit.apply(...) or init() first")
    return _current


def _same_world(world: World, engine: str, library: str | None, guard: bool | None) -> World:
    if engine not in ("auto", world.engine.name):
        raise LaunchError(f"this process already uses engine {world.engine.name!r}; it cannot change to {engine!r}")
    if library is not None and world.library not in (None, library):
        raise EngineError(f"this process already trains with {world.library!r}; start another process for {library!r}")
    world.library = world.library or library
    world.guard = world.guard if guard is None else guard
    return world


def _refuse_two_libraries(library: str | None) -> None:
    """Torch crashes in a process that has loaded TensorFlow first."""
    if library == "torch" and "tensorflow" in sys.modules:
        raise EngineError("TensorFlow is already loaded in this process; train with torch in a separate process")


def _leave_at_exit() -> None:
    if _current is not None:
        _current.shutdown()
