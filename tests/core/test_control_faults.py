"""What happens to the other ranks when one fails, leaves or falls silent: they end, soon, and say which it was."""

from __future__ import annotations

import re
import time

import pytest
from limits import PROMISED_SECONDS
from ranks import launch_fresh, on, slowly

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
# longer than anything that counts as dead; ctypes keeps the interpreter's lock
HOLDING = (
    BEGIN
    + """
import ctypes
if world.rank == 1:
    ctypes.PyDLL(None).sleep(12)
world.barrier()
print("done", flush=True)
"""
)
KILLED_WHILE_OTHERS_HOLD = (
    BEGIN
    + """
import ctypes
if world.rank == 1:
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)
ctypes.PyDLL(None).sleep(12)
"""
)
ALL_STOPPED = (
    BEGIN
    + """
import subprocess
subprocess.Popen(["sh", "-c", f"sleep 12; kill -CONT {os.getpid()}"], stdout=subprocess.DEVNULL)
os.kill(os.getpid(), signal.SIGSTOP)
world.barrier()
print("done", flush=True)
"""
)
FORKING = (
    BEGIN
    + """
if os.fork() == 0:
    sys.exit(0)
os.wait()
time.sleep(2 * world.rank)
world.barrier()
print("done", flush=True)
"""
)
# from the first collective on: 15 seconds for the ranks, and some for their launcher
ENGINES = [*on("core", engines=("mpi",), sizes=(3,)), *on("core", engines=("torch", "horovod"))]
LIMIT = PROMISED_SECONDS + 5.0


def fails(promised, script, combination, limit=LIMIT, **env):
    """Run a script that must fail; return everything that was said."""
    done = launch_fresh(script, combination.engine, combination.size, env=env)
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


# mpiexec shows no more of the others' words, and names the rank itself
@pytest.mark.parametrize("combination", ENGINES[1:])
def test_who_is_killed_is_named_though_the_launcher_ends_the_others_before_they_can_say_so(promised, combination):
    said = fails(promised, KILLED_WHILE_OTHERS_HOLD, combination)
    assert re.search(r"rank 1 failed: its process is gone \(killed or crashed\); rank 0 ends too", said)


@pytest.mark.parametrize("combination", ENGINES)
def test_c01_a_rank_that_leaves_while_others_wait_ends_them_and_is_named(promised, combination):
    said = fails(promised, LEAVING, combination)
    # which of the others notices first is chance
    assert re.search(r"rank 1 failed: it has left the job while rank [02] waits in barrier; rank 0 ends too", said)


@pytest.mark.parametrize("combination", ENGINES)
def test_s03_s07_a_rank_that_is_stopped_for_too_long_ends_the_others_and_is_named(promised, combination):
    said = fails(promised, STOPPED, combination, HVDKIT_REPORT_AFTER="3", HVDKIT_STUCK_AFTER="5")
    waits = r"rank [02] has waited \d s"
    assert re.search(rf"hvdkit: {waits} for other ranks in barrier; rank 1 is stopped by a signal", said)
    assert re.search(
        r"rank 1 failed: it has not come to barrier, where rank [02] has waited 5 s; it is stopped by a signal; "
        r"rank 0 ends too",
        said,
    )


@pytest.mark.parametrize("combination", [*ENGINES[:1], *slowly(ENGINES[1:])])
@pytest.mark.parametrize("script", [HOLDING, ALL_STOPPED], ids=["a lock is held", "all are stopped"])
def test_s03_ranks_that_are_silent_for_a_while_go_on(combination, script):
    done = launch_fresh(script, combination.engine, combination.size)
    assert done.code == 0, done.stderr
    assert done.stdout.count("done") == combination.size


@pytest.mark.parametrize("combination", ENGINES[:1])
def test_s11_a_child_that_the_script_has_forked_does_not_leave_for_its_rank(combination):
    done = launch_fresh(FORKING, combination.engine, combination.size)
    assert done.code == 0, done.stderr
    assert done.stdout.count("done") == combination.size


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
