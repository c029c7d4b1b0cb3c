"""Work beside a script: one piece at a time, and nothing of it lost."""

from __future__ import annotations

import threading

import pytest

from hvdkit.errors import CheckpointError
from hvdkit.job.background import Background
from hvdkit.process import failures


def test_work_goes_on_beside_the_script_and_is_waited_for():
    go, done = threading.Event(), []
    background = Background()
    background.start(lambda: (go.wait(60), done.append(1)))
    assert not done
    go.set()
    background.finish()
    assert done == [1]
    background.finish()


def test_an_error_is_raised_once_where_the_next_piece_begins():
    def fail():
        raise CheckpointError("no space")

    background = Background()
    background.start(fail)
    with pytest.raises(CheckpointError, match="no space"):
        background.finish()
    background.finish()


def test_a_rank_that_fails_waits_a_moment_for_what_is_under_way():
    go, done = threading.Event(), []
    background = Background()
    background.start(lambda: (go.wait(60), done.append(1)))
    failures.finish_work(0.05)
    assert not done
    threading.Timer(0.1, go.set).start()
    failures.finish_work(60.0)
    assert done == [1]
    background.finish()
    assert not failures._Here.work
