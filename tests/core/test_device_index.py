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
