"""The harness itself: ranks are reused, and what goes wrong in a body is seen."""

from __future__ import annotations

import os
import sys

import pytest
from ranks import launch_fresh, on

EVERY = on("core", sizes=(1, 2))
SHARING = on("core", engines=("torch",))  # torchrun hands its own output down
TWO = on("core", engines=("mpi",), sizes=(2,))


@pytest.mark.parametrize("ranks", EVERY, indirect=True)
def test_the_same_processes_take_every_body(ranks):
    def body(offset):
        from hvdkit.job.world import current

        return os.getpid(), current().rank + offset, current().size, current().engine.name

    first, second = ranks.run(body, 10), ranks.run(body, 10)
    assert first == second
    assert [entry[1:] for entry in first] == [(10 + r, ranks.size, ranks.engine) for r in range(ranks.size)]
    assert not {"torch", "tensorflow"} & set(sys.modules)


@pytest.mark.parametrize("ranks", TWO, indirect=True)
def test_a_body_that_raises_fails_the_test_with_its_traceback(ranks):
    def body():
        from hvdkit.job.world import current

        if current().rank == 1:
            raise KeyError("no such thing")
        current().barrier()

    with pytest.raises(AssertionError, match="no such thing"):
        ranks.run(body)
    assert ranks.run(lambda: 1) == [1, 1]


@pytest.mark.parametrize("ranks", TWO, indirect=True)
def test_a_body_that_hangs_is_ended_and_shows_where_it_hung(ranks):
    def body():
        import time

        time.sleep(60)

    with pytest.raises(AssertionError, match=r"(?s)no answer in time.*in body"):
        ranks.run(body, timeout=3)
    assert ranks.run(lambda: 1) == [1, 1]


@pytest.mark.parametrize("ranks", TWO, indirect=True)
def test_a_rank_that_dies_is_seen(ranks):
    def body():
        os._exit(3)

    with pytest.raises(AssertionError, match="gone"):
        ranks.run(body)


@pytest.mark.processes
def test_a_fresh_job_returns_code_and_output():
    done = launch_fresh("import sys\nprint(sys.argv[1])\nsys.exit(7)\n", args=["word"])
    assert (done.code, done.stdout) == (7, "word\n")


@pytest.mark.parametrize("combination", SHARING)
def test_lines_of_ranks_that_share_an_output_are_whole(combination):
    script = """
import time
time.sleep(2 - time.time() % 2)  # both begin at once
for number in range(300):
    print("line", number)
"""
    lines = launch_fresh(script, combination.engine, 2).stdout.splitlines()
    assert sorted(lines) == sorted(2 * [f"line {number}" for number in range(300)])
