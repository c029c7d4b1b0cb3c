"""Ranks that wait over MPI leave a core that they share to the rank that works."""

from __future__ import annotations

import pytest
from ranks import launch_fresh, on

pytestmark = pytest.mark.processes

SCRIPT = """
import os
import time

os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])

from hvdkit.job import world as worlds

world = worlds.init("mpi")
{prepare}
world.engine.barrier()
if world.rank == 0:
    time.sleep(2)
before = time.process_time()
{wait}
print(f"rank {{world.rank}} used {{time.process_time() - before:.2f}} s")
"""
GRADIENTS = """
import torch
from hvdkit.engines.mpi.torch_channel import TorchMpiChannel
channel = TorchMpiChannel(world.engine)
"""
WAITS = {
    "core": ("", "world.engine.barrier()"),
    "torch": (GRADIENTS, "channel.wait(channel.start_allreduce(torch.ones(1000)))"),
}


@pytest.mark.parametrize(
    ("combination", "parts"),
    [
        pytest.param(*entry.values, parts, marks=entry.marks, id=entry.id)
        for name, parts in WAITS.items()
        for entry in on(name, ("mpi",))
    ],
)
def test_a_rank_that_waits_uses_little_of_a_core_that_all_share(combination, parts):
    done = launch_fresh(SCRIPT.format(prepare=parts[0], wait=parts[1]), "mpi", 2)
    assert done.code == 0, done.stdout + done.stderr
    (used,) = [float(line.split()[3]) for line in done.stdout.splitlines() if line.startswith("rank 1 used")]
    assert used < 1
