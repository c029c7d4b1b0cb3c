"""What happens to the other ranks when one fails, leaves or falls silent: they end, soon, and say which it was."""

from __future__ import annotations

import re
import time

import pytest
from limits import PROMISED_SECONDS
from ranks import launch_fresh, on

BEGIN = """
import os, signal, sys, time
import hvdkit
world = hvdkit.init()
world.barrier()
if world.rank == 0:
    print(f"begun at {time.time()}", flush=True)
"""
RAISING = (
    BEGIN
    + """
if world.rank == 1:
    time.sleep(0.5)
    raise ValueError("sample 7 is broken")
world.barrier()
"""
)
KILLED = (
    BEGIN
    + """
if world.rank == 1:
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)
world.barrier()
"""
)
LEAVING = (
    BEGIN
    + """
if world.rank == 1:
    sys.exit(0)
world.barrier()
"""
)
STOPPED = (
    BEGIN
    + """
if world.rank == 1:
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGSTOP)
world.barrier()
"""
)
# between computing ranks there is nobody in a collective who could notice
COMPUTING = (
    BEGIN
    + """
if world.rank == 1:
    time.sleep(0.5)
    raise ValueError("sample 7 is broken")
while True:
    time.sleep(0.01)
"""
)
# from the first collective on: 15 seconds for the ranks, and some for their launcher
ENGINES = [*on("core", engines=("mpi",), sizes=(3,)), *on("core", engines=("torch", "horovod"))]
LIMIT = PROMISED_SECONDS + 5.0


def fails(promised, script, combination, limit=LIMIT):
    """Run a script that must fail; return everything that was said."""
    done = launch_fresh(script, combination.engine, combination.size)
    assert done.code != 0
    begun = re.search(r"begun at ([\d.]+)", done.stdout)
    assert begun is not None, done.stderr
    assert time.time() - float(begun[1]) < promised(limit, since=float(begun[1]))
    return done.stdout + done.stderr


@pytest.mark.parametrize("combination", ENGINES)
@pytest.mark.parametrize("script", [RAISING, COMPUTING], ids=["waiting", "computing"])
def test_a_rank_that_raises_ends_the_others_and_is_named(promised, combination, script):
    said = fails(promised, script, combination)
    assert "ValueError: sample 7 is broken" in said
    assert "rank 1 failed: ValueError: sample 7 is broken; rank 0 ends too" in said


@pytest.mark.parametrize("combination", ENGINES)
def test_a_rank_that_is_killed_ends_the_others_and_is_named(promised, combination):
    assert "rank 1 failed: its process is gone (killed or crashed); rank 0 ends too" in fails(
        promised, KILLED, combination
    )


@pytest.mark.parametrize("combination", ENGINES)
def test_c01_a_rank_that_leaves_while_others_wait_ends_them_and_is_named(promised, combination):
    said = fails(promised, LEAVING, combination)
    # which of the others notices first is chance
    assert re.search(r"rank 1 failed: it has left the job while rank [02] waits in barrier; rank 0 ends too", said)


@pytest.mark.parametrize("combination", [*ENGINES[:1], *on("core", engines=("horovod",))])
def test_a_rank_that_falls_silent_ends_the_others_and_is_named(promised, combination):
    # other launchers than mpiexec wait before they kill a stopped process: torchrun for half a minute
    limit = LIMIT if combination.engine == "mpi" else 2 * LIMIT
    assert "rank 1 failed: no sign of life for 10 s; rank 0 ends too" in fails(promised, STOPPED, combination, limit)


@pytest.mark.parametrize("combination", ENGINES)
def test_ranks_that_finish_at_different_times_all_succeed(combination):
    script = BEGIN + "time.sleep(2 * world.rank)\nprint('done')\n"
    done = launch_fresh(script, combination.engine, combination.size)
    assert done.code == 0, done.stderr
    assert done.stdout.count("done") == combination.size


@pytest.mark.parametrize("combination", on("core", engines=("mpi",), sizes=(4,)))
def test_e01_of_two_hosts_with_two_processes_each_only_global_rank_0_writes(combination, tmp_path):
    script = """
import builtins, os, sys
rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
os.environ["HVDKIT_NODE"] = f"host{rank // 2}"
import hvdkit
from hvdkit.job.files import write_arrays
world = hvdkit.init("mpi")
opened = []
original = builtins.open
def watching(path, mode="r", *rest, **options):
    if "w" in mode:
        opened.append(str(path))
    return original(path, mode, *rest, **options)
builtins.open = watching
world.root_only(lambda: write_arrays(sys.argv[1], {}, {"epoch": 1}))
builtins.open = original
sys.stdout.write(f"{world.rank} {world.local_rank} {world.local_size} {world.node} {world.nodes} {len(opened)}\\n")
"""
    done = launch_fresh(script, "mpi", 4, args=[str(tmp_path / "epoch-0001.npz")])
    assert done.code == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["0 0 2 0 2 1", "1 1 2 0 2 0", "2 0 2 1 2 0", "3 1 2 1 2 0"]
    assert [path.name for path in tmp_path.iterdir()] == ["epoch-0001.npz"]
