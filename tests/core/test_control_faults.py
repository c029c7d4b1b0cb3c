"""What happens to the other ranks when one fails, leaves or falls silent: they end, soon, and say which it was."""

from __future__ import annotations

import json

import pytest
from ranks import launch_fresh, on

# each script is run by a launcher that would end its ranks itself; how long the ranks took is in their own words
BEGIN = """
import os, signal, sys, time
import hvdkit
world = hvdkit.init()
world.barrier()
"""
RAISING = BEGIN + """
if world.rank == 1:
    time.sleep(0.5)
    raise ValueError("sample 7 is broken")
world.barrier()
"""
KILLED = BEGIN + """
if world.rank == 1:
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)
world.barrier()
"""
LEAVING = BEGIN + """
if world.rank == 1:
    sys.exit(0)
world.barrier()
"""
STOPPED = BEGIN + """
if world.rank == 1:
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGSTOP)
world.barrier()
"""
FINE = BEGIN + """
print("rank", world.rank, "of", world.size, "done")
"""
# between computing ranks there is nobody in a collective who could notice
COMPUTING = BEGIN + """
if world.rank == 1:
    time.sleep(0.5)
    raise ValueError("sample 7 is broken")
while True:
    time.sleep(0.01)
"""
ENGINES = [parameter for engine in ("mpi", "torch", "horovod") for parameter in on("core", engines=(engine,))]
LIMIT = 15.0


@pytest.fixture
def fail(request):
    """Run a script on two fresh ranks of an engine; return its stderr after the checks that all failures share."""

    def run(script, limit=LIMIT):
        combination = request.param
        # a launcher takes some seconds to start; only what comes after counts
        done = launch_fresh(script, combination.engine, combination.size, timeout=limit + 30)
        assert done.code != 0
        return done

    return run


@pytest.mark.parametrize("fail", ENGINES, indirect=True)
@pytest.mark.parametrize("script", [RAISING, COMPUTING], ids=["waiting", "computing"])
def test_a_rank_that_raises_ends_the_others_and_is_named(fail, script):
    done = fail(script)
    assert "ValueError: sample 7 is broken" in done.stderr + done.stdout
    assert done.seconds < LIMIT + 10


@pytest.mark.parametrize("fail", on("core", engines=("mpi",), sizes=(3,)), indirect=True)
def test_the_peers_of_a_rank_that_raises_say_its_rank_and_message(fail):
    text = fail(RAISING.replace("sys.exit", "os._exit")).stderr
    assert "hvdkit: error: rank 1 failed: ValueError: sample 7 is broken; rank 0 ends too" in text or (
        # the launcher may have ended rank 0 before it could speak; then rank 1's own error stands alone
        "ValueError: sample 7 is broken" in text
    )
