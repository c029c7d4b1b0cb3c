"""Steps 1 and 2: join the job, take a device."""

from __future__ import annotations

import torch

from hvdkit.job import world as worlds
from hvdkit.job.devices import check_own, threads_for, torch_gpu
from hvdkit.job.world import World
from hvdkit.process.watch.judge import Limits
from hvdkit.torch import drift


def init(
    engine: str = "auto", guard: bool | None = None, *, report_after: float = 60.0, stuck_after: float = 600.0
) -> World:
    """Step 1: join the job; a second call returns the same world.

    Args:
        engine: ``auto``, ``horovod``, ``torch``, ``mpi`` or ``serial``.
        guard: Compare data and weights between ranks now and then (``docs/torch.md``), and stop where they differ; None
            leaves it as it is, at first True.
        report_after: Name a rank for which others wait so many seconds.
        stuck_after: End the job if it stays in one place for so many seconds; ``hvdkit run`` and the environment
            (``HVDKIT_REPORT_AFTER``, ``HVDKIT_STUCK_AFTER``) have the last word on both.

    Raises:
        EngineError: The engine is unknown, not installed, or not built for torch.
        LaunchError: Launcher and engine do not fit, or disagree on the number of processes.
    """
    world = worlds.init(engine, "torch", guard, Limits(report_after, stuck_after))
    drift.guard(world)
    return world


def pin(threads: int | str = "auto") -> str:
    """Step 2: make this process's GPU the current one, by local rank, and share the CPU threads of the node.

    Called by all ranks.

    Args:
        threads: CPU threads of this process; ``auto`` divides the cores by the processes of the node unless the user
            has set them, and changes nothing on one process.

    Returns:
        The device, such as ``cuda:1`` or ``cpu``.

    Raises:
        LaunchError: There are fewer GPUs than processes on this node, or several processes hold the same.
    """
    world = worlds.current()
    number = threads_for(world, threads)
    if number is not None:
        torch.set_num_threads(number)
    index, gpu = torch_gpu(world)
    check_own(world, gpu)
    return "cpu" if index is None else f"cuda:{index}"


def default_device() -> str:
    """Return the device that torch itself would take."""
    return "cuda" if torch.cuda.is_available() else "cpu"
