"""Which device and how many CPU threads a process takes, from what it sees; no framework."""

from __future__ import annotations

import os

from hvdkit.errors import LaunchError
from hvdkit.job.world import World
from hvdkit.process.environment import user_set_threads


def device_index(visible: int, local_rank: int, local_size: int) -> int | None:
    """Return the device of a process among those it sees, or None for the CPU.

    Args:
        visible: Devices that this process sees.
        local_rank: The process among those of its node.
        local_size: Processes of the node.

    Raises:
        LaunchError: There are several devices, but fewer than processes.
    """
    if visible == 0:
        return None
    if visible == 1:
        # a scheduler gave each process its own device, or there is one process
        return 0
    if visible < local_size:
        raise LaunchError(
            f"{local_size} processes on this node but only {visible} GPUs; start at most {visible} processes per node"
        )
    return local_rank


def threads_for(world: World, threads: int | str) -> int | None:
    """Return the CPU threads of this process, or None to leave them as they are.

    ``auto`` divides the cores of the node by its processes, unless there is one process or the user has chosen.
    """
    if isinstance(threads, int):
        return threads
    if world.size == 1 or user_set_threads():
        return None
    return max(1, len(os.sched_getaffinity(0)) // world.local_size)
