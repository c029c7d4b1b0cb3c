"""Which device and how many threads a process takes."""

from __future__ import annotations

import os

import pytest
from ranks import launch_fresh, on

from hvdkit.errors import LaunchError
from hvdkit.job.devices import device_index

TWO = on("core", engines=("mpi",), sizes=(2,))


@pytest.mark.parametrize(("visible", "expected"), [(0, [None, None]), (1, [0, 0]), (2, [0, 1]), (4, [0, 1])])
def test_f04_devices_of_two_processes_that_see_none_one_two_or_four(visible, expected):
    assert [device_index(visible, local_rank, 2) for local_rank in (0, 1)] == expected


def test_f04_more_processes_than_devices_is_one_clear_error_on_every_process():
    for local_rank in range(4):
        with pytest.raises(LaunchError, match="4 processes on this node but only 2 GPUs; start at most 2"):
            device_index(2, local_rank, 4)


def held(gpus, nodes=("one", "one")):
    """Let each rank hold a GPU on a node, and return what it is told; runs on every rank."""
    from unittest import mock

    from hvdkit.job import devices
    from hvdkit.job.world import current

    rank = current().rank
    with mock.patch.object(devices, "node_name", return_value=nodes[rank]):
        try:
            devices.check_own(current(), gpus[rank])
        except LaunchError as error:
            return str(error)
    return "good"


@pytest.mark.parametrize("ranks", TWO, indirect=True)
def test_l08_two_ranks_that_hold_one_gpu_are_refused_on_both(ranks):
    told = (
        "2 processes on one share one GPU (ranks 0 and 1 hold GPU-a); start at most 1 per node, or show each its own "
        "by CUDA_VISIBLE_DEVICES"
    )
    assert ranks.run(held, ["GPU-a", "GPU-a"]) == [told, told]


@pytest.mark.parametrize("ranks", on("core", engines=("mpi",), sizes=(3,)), indirect=True)
def test_l08_the_number_of_gpus_and_all_ranks_that_share_one_are_named(ranks):
    (found,) = set(ranks.run(held, ["GPU-a"] * 3, ["one"] * 3))
    assert "3 processes on one share one GPU (ranks 0, 1 and 2 hold GPU-a); start at most 1 per node" in found
    (found,) = set(ranks.run(held, ["GPU-a", "GPU-b", "GPU-a"], ["one"] * 3))
    assert "2 processes on one share one GPU (ranks 0 and 2 hold GPU-a); start at most 2 per node" in found


@pytest.mark.parametrize("ranks", TWO, indirect=True)
def test_l08_own_gpus_cpus_unknown_gpus_and_other_nodes_are_good(ranks):
    assert ranks.run(held, ["GPU-a", "GPU-b"]) == ["good"] * 2
    assert ranks.run(held, ["", ""]) == ["good"] * 2
    assert ranks.run(held, ["GPU-a", ""]) == ["good"] * 2
    assert ranks.run(held, ["GPU-a", "GPU-a"], ["one", "two"]) == ["good"] * 2


@pytest.mark.processes
def test_h01_one_process_keeps_its_threads():
    script = """
import hvdkit
from hvdkit.job.devices import threads_for
world = hvdkit.init()
print(threads_for(world, "auto"), threads_for(world, 3))
"""
    assert launch_fresh(script).stdout.split() == ["None", "3"]


@pytest.mark.parametrize("ranks", TWO, indirect=True)
def test_h01_cores_are_divided_by_the_processes_of_the_node_unless_the_user_has_chosen(ranks):
    def body():
        from hvdkit.job.devices import threads_for
        from hvdkit.job.world import current

        chosen = threads_for(current(), "auto")
        kept = {name: os.environ.pop(name) for name in list(os.environ) if name.endswith("_THREADS")}
        divided = threads_for(current(), "auto")
        os.environ.update(kept)
        return chosen, divided

    share = max(1, len(os.sched_getaffinity(0)) // 2)
    assert ranks.run(body) == [(None, share)] * 2
