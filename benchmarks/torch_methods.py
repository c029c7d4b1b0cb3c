"""What ``torch_engines`` compares: ways to distribute one model and optimizer, over engines that live side by side."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

import hvdkit.torch as hk
from benchmarks.ports import free_port
from hvdkit.engines.base import Engine
from hvdkit.engines.horovod.engine import HorovodEngine
from hvdkit.engines.horovod.installed import built_for, mpi_built
from hvdkit.engines.mpi.engine import MpiEngine
from hvdkit.engines.torch_distributed.engine import TorchDistributedEngine
from hvdkit.job import world as worlds
from hvdkit.job.world import World
from hvdkit.process.environment import launched_as


class Job:
    """The processes, with every engine that this machine has started in each."""

    def __init__(self, world: World, compiled: bool, compression: str) -> None:
        self.world, self.compiled, self.compression = world, compiled, compression
        self.rank, self.size = world.rank, world.size
        self.device = hk.pin()
        self.worlds: dict[str, World] = {world.engine.name: world}
        self._add("torch", self._torch_engine)
        launcher = launched_as().launcher
        if launcher == "mpirun" and self.device == "cpu":
            self._add("mpi", MpiEngine)
        if built_for("torch") and (self.size == 1 or (launcher == "mpirun" and mpi_built())):
            self._add("horovod", lambda: HorovodEngine("torch"))

    @classmethod
    def join(cls, compiled: bool, compression: str) -> Job:
        """Start the engines: the launcher's own, torch.distributed beside it, and the others that fit."""
        return cls(hk.init(), compiled, compression)

    def available(self) -> list[str]:
        """Return the methods that can run here."""
        names, compressed = ["plain", "ddp"], self.compression != "none"
        # stock Horovod compresses to half precision only
        if "horovod" in self.worlds and self.size > 1 and self.compression != "bf16":
            names += ["horovod", "horovod-best"] if self.device != "cpu" else ["horovod"]
        engines = [name for name in self.worlds if name != "serial" and not (name == "mpi" and compressed)]
        names += [f"hvdkit-{name}" for name in engines]
        return [*names, "ddp-captured", "hvdkit-torch-captured"] if self.device != "cpu" else names

    def wait_for_all(self) -> None:
        """Line up the ranks and their devices."""
        if self.device != "cpu":
            torch.cuda.synchronize()
        self.world.barrier()

    def slowest(self, seconds: float) -> float:
        """Return the longest of all ranks' times."""
        return float(self.world.allreduce(seconds, "max"))

    def device_name(self) -> str:
        """Return what the ranks run on."""
        return torch.cuda.get_device_name() if self.device != "cpu" else "CPU"

    def leave(self) -> None:
        """End all engines."""
        self.world.barrier()
        # NCCL waits for them when its process group ends
        for graph in _graphs:
            graph.reset()
        for world in self.worlds.values():
            if world is not self.world and world.control is not None:
                world.control.leave()
        self.world.shutdown()

    def _add(self, name: str, start: Callable[[], Engine]) -> None:
        if name not in self.worlds:
            self.worlds[name] = World(start(), "for comparison", "torch")

    def _torch_engine(self) -> Engine:
        backend = "cpu:gloo,cuda:nccl" if self.device != "cpu" else "gloo"
        port = self.world.broadcast_object(free_port())
        dist.init_process_group(backend, init_method=f"tcp://127.0.0.1:{port}", rank=self.rank, world_size=self.size)
        return TorchDistributedEngine(launched=True)


Method = Callable[[Job, torch.nn.Module, torch.optim.Optimizer], tuple[torch.nn.Module, Any]]


def _plain(_job: Job, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> tuple[torch.nn.Module, Any]:
    return model, optimizer


def _ddp(job: Job, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> tuple[torch.nn.Module, Any]:
    devices = None if job.device == "cpu" else [torch.device(job.device)]
    # the compiler's part of DDP knows no static graph
    wrapped = torch.nn.parallel.DistributedDataParallel(
        model, device_ids=devices, gradient_as_bucket_view=True, static_graph=not job.compiled
    )
    if job.compression != "none":
        wrapped.register_comm_hook(None, getattr(default_hooks, f"{job.compression}_compress_hook"))
    return wrapped, optimizer


def _ddp_on_a_stream(job: Job, model: torch.nn.Module, optimizer: Any) -> tuple[torch.nn.Module, Any]:
    """Wrap as PyTorch's notes on CUDA graphs ask for."""
    with torch.cuda.stream(torch.cuda.Stream()):
        wrapped = torch.nn.parallel.DistributedDataParallel(
            model, device_ids=[torch.device(job.device)], gradient_as_bucket_view=True
        )
    return wrapped, optimizer


def _horovod(job: Job, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> tuple[torch.nn.Module, Any]:
    import horovod.torch as hvd

    compression = getattr(hvd.Compression, job.compression)
    return model, hvd.DistributedOptimizer(optimizer, model.named_parameters(), compression)


def _hvdkit(engine: str) -> Method:
    def method(job: Job, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> tuple[torch.nn.Module, Any]:
        held, worlds._current = worlds._current, job.worlds[engine]
        try:
            return model, hk.distribute(optimizer, model, compression=job.compression)
        finally:
            worlds._current = held

    return method


METHODS: dict[str, Method] = {
    "plain": _plain,
    "ddp": _ddp,
    "ddp-captured": _ddp_on_a_stream,
    "horovod": _horovod,
    "horovod-best": _horovod,
    "hvdkit-horovod": _hvdkit("horovod"),
    "hvdkit-torch": _hvdkit("torch"),
    "hvdkit-torch-captured": _hvdkit("torch"),
    "hvdkit-mpi": _hvdkit("mpi"),
}


class Steps(Protocol):
    """What is captured."""

    model: torch.nn.Module
    optimizer: Any
    update: Callable[[], None]


def as_it_is(_job: Job, steps: Steps) -> Callable[[], None]:
    """Return the update as Python does it."""
    return steps.update


def _by_hand(_job: Job, steps: Steps) -> Callable[[], None]:
    """Capture the update as PyTorch's notes on CUDA graphs do, behind 11 updates on a stream of their own."""
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(11):
            steps.update()
    torch.cuda.current_stream().wait_stream(stream)
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        steps.update()
    _graphs.append(graph)
    return graph.replay


def _by_hvdkit(job: Job, steps: Steps) -> Callable[[], None]:
    held, worlds._current = worlds._current, job.worlds["torch"]
    try:
        captured: Callable[[], None] = hk.capture(steps.update, steps.optimizer, steps.model)
    finally:
        worlds._current = held
    return captured


_graphs: list[torch.cuda.CUDAGraph] = []
CAPTURES: dict[str, Callable[[Job, Any], Callable[[], None]]] = {
    "ddp-captured": _by_hand,
    "hvdkit-torch-captured": _by_hvdkit,
}
