"""Records what Python gives a GPU to do, and gives it the same again without Python."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch

Replay = Callable[[], None]


class Recorder(Protocol):
    """What :class:`hvdkit.torch.graphs.recordings.Recordings` needs of a device."""

    def beside(self) -> AbstractContextManager[None]:
        """Run passes inside on the stream on which they are recorded."""

    def record(self, work: Callable[[], Any], generators: list[torch.Generator]) -> tuple[Any, Replay]:
        """Record what ``work`` does, which does not happen yet; return its result, and what makes it happen."""

    def watching(self) -> AbstractContextManager[list[str]]:
        """Note what waits for the device inside, which no recording can."""

    def lacks(self) -> str:
        """Return what the device lacks for a first recording, in words; empty if nothing."""

    def release(self) -> None:
        """Let go of all recordings."""


class CudaRecorder:
    """Records CUDA graphs, which share one pool of memory: they never run at once."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()
        self._graphs: weakref.WeakSet[torch.cuda.CUDAGraph] = weakref.WeakSet()

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Run passes inside on a stream of their own; what follows waits for them, on the device."""
        outer = torch.cuda.current_stream()
        self._stream.wait_stream(outer)
        with torch.cuda.stream(self._stream):
            yield
        outer.wait_stream(self._stream)

    def record(self, work: Callable[[], Any], generators: list[torch.Generator]) -> tuple[Any, Replay]:
        """Record a graph; other threads may use the device meanwhile."""
        try:
            graph, result = self._recorded(work, generators, self._pool)
        except BaseException:
            # a recording that ends well frees the random generators, which one that broke off still holds
            self._recorded(lambda: torch.zeros(1, device=self._stream.device), generators, None)
            raise
        self._graphs.add(graph)
        return result, graph.replay

    def _recorded(
        self, work: Callable[[], Any], generators: list[torch.Generator], pool: Any
    ) -> tuple[torch.cuda.CUDAGraph, Any]:
        graph = torch.cuda.CUDAGraph()
        for generator in generators:
            graph.register_generator_state(generator)
        with torch.cuda.graph(graph, pool, self._stream, capture_error_mode="thread_local"):
            result = work()
        return graph, result

    def lacks(self) -> str:
        """Say that memory is lacking if an update would not fit twice."""
        free, _ = torch.cuda.mem_get_info(self._stream.device)
        held = torch.cuda.memory_allocated(self._stream.device)
        once = torch.cuda.max_memory_allocated(self._stream.device) - held
        return crowded(once, free + torch.cuda.memory_reserved(self._stream.device) - held)

    def release(self) -> None:
        """Destroy the graphs, for which NCCL would wait when its process group ends."""
        for graph in self._graphs:
            graph.reset()

    @contextmanager
    def watching(self) -> Iterator[list[str]]:
        """Note the lines at which the host waits for the device."""
        found: list[str] = []
        before = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                yield found
            finally:
                torch.cuda.set_sync_debug_mode(before)
        for each in caught:
            text = str(each.message)
            if "synchronizing CUDA operation" in text:
                found.append(f"the host waits for the device at {each.filename}:{each.lineno}")
            elif "Synchronization debug mode" not in text:
                warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)


def crowded(once: int, room: int) -> str:
    """Say that an update of ``once`` bytes does not fit twice into ``room`` bytes; empty if it does.

    A graph keeps its memory, and whatever runs beside it, such as evaluation, needs some of its own.
    """
    if 2 * once <= room:
        return ""
    return f"an update takes {once / 2**30:.1f} GiB of the GPU, and would be held twice in {room / 2**30:.1f} GiB"


def recorder_for(device: torch.device) -> Recorder | None:
    """Return what records on a device; None where nothing can."""
    return CudaRecorder(device) if device.type == "cuda" else None
