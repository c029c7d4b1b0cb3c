"""Who keeps the others waiting, as the hub judges it."""

from __future__ import annotations

import pytest

from hvdkit.process.watch.judge import STOPPED, Ask, End, Judge, Limits, Report


@pytest.fixture
def judge():
    return Judge(3, Limits(report=60.0, stuck=600.0))


def verdicts(judge, *times):
    return [verdict for now in times for verdict in judge.look(now)]


def ends(judge, *times):
    return [verdict for verdict in verdicts(judge, *times) if isinstance(verdict, End)]


def test_nothing_is_said_of_ranks_that_wait_shortly(judge):
    judge.waits(0, 1, "barrier", 100.0)
    assert not verdicts(judge, 101.0, 110.0, 129.0)


def test_ranks_that_wait_in_different_collectives_end_after_five_seconds(judge):
    judge.waits(0, 7, "barrier", 100.0)
    judge.waits(1, 7, "allgather", 103.0)
    assert not ends(judge, 107.9)
    (end,) = ends(judge, 108.1)
    assert (end.rank, end.message.partition(";")[0]) == (1, "it waits in allgather while rank 0 waits in barrier")


def test_ranks_that_have_not_waited_equally_often_may_be_in_different_collectives(judge):
    judge.waits(0, 7, "barrier", 100.0)
    judge.waits(1, 6, "allgather", 100.0)
    assert not ends(judge, 120.0, 200.0)


def test_who_has_left_ends_those_that_wait_for_it(judge):
    judge.leaves(2, 100.0)
    assert not verdicts(judge, 1000.0)
    judge.waits(0, 7, "barrier", 1000.0)
    assert not ends(judge, 1004.9)
    assert ends(judge, 1005.1) == [End(2, "it has left the job while rank 0 waits in barrier")]


def test_a_wait_that_breaks_is_the_fault_of_the_one_that_left(judge):
    assert judge.broken_by(0, "barrier") is None
    judge.leaves(2, 100.0)
    assert judge.broken_by(0, "barrier") == End(2, "it has left the job while rank 0 waits in barrier")


def test_who_is_late_is_asked_and_named_once(judge):
    judge.waits(0, 7, "barrier", 100.0)
    judge.waits(2, 7, "barrier", 110.0)
    asked = verdicts(judge, 131.0)
    assert asked == [Ask(1)]
    judge.is_at(1, "at train.py:42 (in step)", "a", 131.3)
    reports = [verdict for verdict in verdicts(judge, 150.0, 161.0, 170.0, 300.0) if isinstance(verdict, Report)]
    words = "rank 0 has waited 61 s for other ranks in barrier; rank 1 is at train.py:42 (in step)"
    assert reports == [Report(words)]


def test_a_place_told_before_a_wait_began_is_not_where_the_rank_is(judge):
    judge.is_at(1, "at train.py:7 (in prepare)", "early", 95.0)
    judge.waits(0, 7, "barrier", 100.0)
    judge.waits(2, 7, "barrier", 100.0)
    assert verdicts(judge, 131.0, 161.0) == [Ask(1), Ask(1)]
    judge.is_at(1, "at train.py:42 (in step)", "late", 161.5)
    (report,) = (verdict for verdict in verdicts(judge, 162.0) if isinstance(verdict, Report))
    assert report.text.endswith("; rank 1 is at train.py:42 (in step)")


def test_who_stays_in_one_place_ends_the_job_and_who_moves_does_not(judge):
    judge.waits(0, 7, "barrier", 100.0)
    judge.waits(2, 7, "barrier", 100.0)
    for now in range(140, 1400, 10):
        judge.is_at(1, "at train.py:42 (in step)", f"stack {now // 100}", float(now))
        assert not ends(judge, float(now))
    judge.is_at(1, "at train.py:50 (in save)", "same", 1400.0)
    assert not ends(judge, 1990.0)
    (end,) = ends(judge, 2000.1)
    assert end == End(1, "it has not come to barrier, where rank 0 has waited 600 s; it is at train.py:50 (in save)")


def test_all_ranks_that_wait_in_one_place_end_too(judge):
    for rank in range(3):
        judge.waits(rank, 7, "the reduction of gradients", 100.0)
    assert not ends(judge, 699.0)
    (end,) = ends(judge, 701.0)
    assert end.message == "it has waited 600 s in the reduction of gradients, as all ranks have"


def test_time_in_which_the_watcher_was_stopped_does_not_count(judge):
    judge.waits(0, 7, "barrier", 100.0)
    judge.waits(1, 7, "allgather", 100.0)
    judge.leaves(2, 100.0)
    judge.was_away(5000.0)
    assert not ends(judge, 5004.0)
    assert ends(judge, 5006.0)


def test_who_does_not_answer_is_named_without_its_place_a_little_later(judge):
    judge.waits(0, 7, "barrier", 100.0)
    judge.waits(2, 7, "barrier", 100.0)
    assert verdicts(judge, 131.0, 160.5) == [Ask(1), Ask(1)]
    (report,) = (verdict for verdict in verdicts(judge, 165.5) if isinstance(verdict, Report))
    assert report.text == "rank 0 has waited 66 s for other ranks in barrier; rank 1 is late"


def test_who_does_not_answer_is_named_before_it_ends_the_job():
    judge = Judge(2, Limits(report=2.0, stuck=6.0))
    judge.waits(0, 7, "barrier", 100.0)
    said = [verdict for verdict in verdicts(judge, *(100.0 + 0.5 * turn for turn in range(14))) if verdict != Ask(1)]
    assert [type(verdict) for verdict in said] == [Report, End]


def test_who_is_stopped_where_all_wait_is_to_blame(judge):
    for rank in range(3):
        judge.waits(rank, 7, "barrier", 100.0)
    assert verdicts(judge, 131.0) == [Ask(rank) for rank in range(3)]
    for rank, place in enumerate(("at train.py:42 (in step)", STOPPED, "at train.py:42 (in step)")):
        judge.is_at(rank, place, place, 132.0)
    (report,) = (verdict for verdict in verdicts(judge, 161.0) if isinstance(verdict, Report))
    assert report.text.endswith("in barrier; rank 1 is stopped by a signal")
    (end,) = ends(judge, 733.0)
    assert (end.rank, end.message.rpartition("; ")[2]) == (1, "it is stopped by a signal")
