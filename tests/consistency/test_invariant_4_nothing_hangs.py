"""Invariant 4: a rank that is gone, or in another collective, ends all ranks; one that is late is told.

Other ways to end are tested in tests/core/test_control_faults.py and tests/launch/test_endings.py.
"""

from __future__ import annotations

import re
import time

import pytest
from cells import marked, pairs, slow
from limits import PROMISED_SECONDS
from ranks import launch_fresh, on

# 15 seconds for the ranks, and some for their launcher
LIMIT = PROMISED_SECONDS + 5.0
CORE = [
    marked(entry) for name, size in (("mpi", 3), ("torch", 2), ("horovod", 2)) for entry in on("core", (name,), (size,))
]
BEGIN = """
import os, signal, sys, time
import hvdkit
world = hvdkit.init()
world.barrier()
if world.rank == 0:
    print(f"begun at {time.time()}", flush=True)
"""
OTHER_SHAPE = BEGIN + "world.allreduce([0.0] * (3 + (world.rank == 1)))"
OTHER_COLLECTIVE = BEGIN + "world.barrier() if world.rank == 1 else world.allgather([0])"
LATE = BEGIN + "time.sleep(8.0 * (world.rank == 1)); world.barrier(); print('done')"
TRAINING = """
import os, signal, sys, time
import numpy as np
import hvdkit
from hvdkit.training.observers import Observer

framework, engine, end = sys.argv[1:]
x = np.random.default_rng(0).normal(size=(64, 6)).astype("float32")
y = (x[:, 0] > 0).astype("int64")

def net():
    if framework == "torch":
        import torch
        layers = [torch.nn.BatchNorm1d(6)] if end == "pass" else []
        return torch.nn.Sequential(*layers, torch.nn.Linear(6, 2))
    import keras
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(2)])

class End(Observer):
    def on_step_end(self, trainer):
        if trainer.global_step != 3:
            return
        if trainer.world.rank == 0:
            print(f"begun at {time.time()}", flush=True)
        if trainer.world.rank == 1 and end == "kill":
            time.sleep(0.5)
            os.kill(os.getpid(), signal.SIGKILL)
        if trainer.world.rank == 1 and end == "late":
            time.sleep(99)
        if trainer.world.rank == 1 and end == "mismatch":
            trainer.world.barrier()
        if trainer.world.rank == 0 and end == "pass":
            import torch
            trainer.model(torch.zeros(4, 6))

recipe = hvdkit.Recipe(
    model=net,
    data=hvdkit.Data(train=(x, y)),
    optimizer=hvdkit.SGD(0.1),
    batch_size=4,
    epochs=9,
    observers=(End(),),
    distribute=hvdkit.Distribute(sync_batchnorm=end == "pass"),
    init=hvdkit.Init(engine, **({"report_after": 2.0, "stuck_after": 6.0} if end == "late" else {})),
)
hvdkit.apply(recipe, framework).fit()
"""


def fails(promised, script, combination, *args, **env):
    """Run a script that must fail on all ranks in time; return what was said."""
    done = launch_fresh(script, combination.engine, combination.size, args, {**dict(combination.env), **env})
    assert done.code != 0
    begun = re.search(r"begun at ([\d.]+)", done.stdout)
    assert begun is not None, done.stderr
    assert time.time() - float(begun[1]) < promised(LIMIT, since=float(begun[1]))
    return done.stdout + done.stderr


@pytest.mark.parametrize("script", [OTHER_SHAPE, OTHER_COLLECTIVE], ids=["shape", "collective"])
@pytest.mark.parametrize("combination", CORE)
def test_ranks_that_ask_for_different_things_all_end_with_the_same_error(promised, combination, script):
    said = fails(promised, script, combination)
    words = "barrier" if script is OTHER_COLLECTIVE else "allreduce(mean) of float64 (4,)"
    assert "ranks disagree: rank 0 asks for all" in said
    assert f"rank 1 for {words}" in said


@pytest.mark.parametrize("combination", CORE)
def test_s03_a_rank_that_is_late_is_told_and_nothing_ends(combination):
    done = launch_fresh(LATE, combination.engine, combination.size, env={"HVDKIT_REPORT_AFTER": "2"})
    assert done.code == 0, done.stderr
    assert done.stdout.count("done") == combination.size
    late = (
        r"hvdkit: rank [02] has waited [2-7] s for other ranks in barrier; rank 1 is at script.py:\d+ \(in <module>\)"
    )
    assert re.search(late, done.stderr)


@pytest.mark.parametrize("combination", CORE[:1])
def test_a_rank_that_does_not_move_ends_the_job(promised, combination):
    said = fails(promised, LATE.replace("8.0", "99.0"), combination, HVDKIT_STUCK_AFTER="4")
    where = r"it is at script.py:\d+ \(in <module>\)"
    assert re.search(rf"rank 1 failed: it has not come to barrier, where rank [02] has waited 4 s; {where}", said)


@pytest.mark.parametrize("combination", [*pairs(("torch", "tf")), *slow(pairs(("keras",)))])
def test_a_recipe_says_how_long_ranks_may_wait(promised, combination):
    said = fails(promised, TRAINING, combination, combination.framework, combination.engine, "late")
    assert re.search(r"rank 0 has waited \d s for other ranks in .*; rank 1 is (at script.py|late)", said), said
    assert re.search(r"rank 1 failed: it has not come to .*, where rank 0 has waited 6 s; it is at script.py:\d+", said)


@pytest.mark.parametrize("combination", [*pairs(("torch", "tf")), *slow(pairs(("keras",)))])
def test_a_rank_that_is_killed_while_it_trains_ends_the_other(promised, combination):
    said = fails(promised, TRAINING, combination, combination.framework, combination.engine, "kill")
    assert "rank 1 failed: its process is gone (killed or crashed); rank 0 ends too" in said


@pytest.mark.parametrize("combination", [*pairs(("torch", "tf")), *slow(pairs(("keras",)))])
def test_s05_a_rank_that_waits_elsewhere_while_gradients_are_reduced_ends_both(promised, combination):
    said = fails(promised, TRAINING, combination, combination.framework, combination.engine, "mismatch")
    assert re.search(
        r"rank 1 failed: it waits in barrier while rank 0 waits in the reduction of gradients; all ranks must ask for "
        r"the same collectives in the same order; rank [01] ends too",
        said,
    )


@pytest.mark.parametrize("combination", pairs(("torch",)))
def test_s16_a_pass_through_synchronised_statistics_on_one_rank_ends_both(promised, combination):
    # Gloo, MPI and Horovod find parts of different lengths at once, each in its own words
    said = fails(promised, TRAINING, combination, combination.framework, combination.engine, "pass")
    assert re.search(r"rank [01] failed: |Mismatched ALLREDUCE tensor shapes", said)
