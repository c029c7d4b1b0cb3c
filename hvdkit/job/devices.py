"""Which device and how many CPU threads a process takes, from what it sees; loads no framework by itself."""

from __future__ import annotations

import os

from hvdkit.errors import LaunchError
from hvdkit.job.world import World
from hvdkit.process.environment import node_name, user_set_threads


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


def torch_gpu(world: World) -> tuple[int | None, str]:
    """Make a GPU torch's current one, by local rank.

    Returns:
        Its index among those that torch sees, and its UUID; None and ``""`` on the CPU.

    Raises:
        LaunchError: There are several GPUs, but fewer than processes on this node.
    """
    import torch

    index = device_index(torch.cuda.device_count(), world.local_rank, world.local_size)
    if index is None:
        return None, ""
    torch.cuda.set_device(index)
    uuid = getattr(torch.cuda.get_device_properties(index), "uuid", "")  # an older torch does not tell
    return index, f"GPU-{uuid}" if uuid else ""


def check_own(world: World, gpu: str) -> None:
    """Check that each process of a node has a GPU of its own; called by all ranks.

    One GPU that all of them see looks to each like one that a scheduler has given to it alone.

    Args:
        world: The job.
        gpu: The UUID of this process's GPU; ``""`` on the CPU, or where it is not known.

    Raises:
        LaunchError: Several processes of a node hold the same GPU; on every rank.
    """
    if world.size == 1:
        return
    with world.engine.inside("pin"):
        places = world.engine.allgather_object((node_name(), gpu))
    for node, held in places:
        ranks = [rank for rank, place in enumerate(places) if place == (node, held)]
        if held and len(ranks) > 1:
            gpus = {other for place, other in places if place == node and other}
            named = f"{', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
            raise LaunchError(
                f"{len(ranks)} processes on {node} share one GPU (ranks {named} hold {held}); start at most "
                f"{len(gpus)} per node, or show each its own by CUDA_VISIBLE_DEVICES"
            )


def threads_for(world: World, threads: int | str) -> int | None:
    """Return the CPU threads of this process, or None to leave them as they are.

    ``auto`` divides the cores of the node by its processes, unless there is one process or the user has chosen.
    """
    if isinstance(threads, int):
        return threads
    if world.size == 1 or user_set_threads():
        return None
    return max(1, len(os.sched_getaffinity(0)) // world.local_size)
