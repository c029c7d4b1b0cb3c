"""Averages by sums and counts, over batches and over ranks."""

from __future__ import annotations

import math

import numpy as np
import pytest
from ranks import launch_fresh, on

from hvdkit.job.metrics import Sums

EVERYWHERE = on("core", engines=("serial", "mpi"), sizes=(1, 2, 3))
TWO = on("core", engines=("mpi",))


def mean_of(values, count=1):
    """Average this rank's entry of a list."""
    from hvdkit.job.metrics import average
    from hvdkit.job.world import current

    world = current()
    return average(world, values[world.rank], count[world.rank] if isinstance(count, list) else count)


def complaint(values, count=1):
    from hvdkit.errors import RecipeError

    try:
        return mean_of(values, count)
    except RecipeError as error:
        return str(error)


@pytest.mark.parametrize("ranks", TWO, indirect=True)
def test_d01_ninety_right_and_ten_wrong_samples_are_090(ranks):
    assert ranks.run(mean_of, [1.0, 0.0], [90, 10]) == [0.9, 0.9]
    assert ranks.run(mean_of, [float("nan"), 0.5], [0, 10]) == [0.5, 0.5]


@pytest.mark.parametrize("ranks", EVERYWHERE, indirect=True)
def test_numbers_arrays_and_dicts_come_back_as_floats_and_float64(ranks):
    def body():
        from hvdkit.job.world import current

        rank = current().rank
        values = {"integer": rank, "flag": rank == 0, "array": np.full(3, rank, np.float32), "one": np.array([rank])}
        averaged = mean_of([values] * current().size)
        return averaged, type(averaged["integer"]), mean_of([rank] * current().size)

    mean = (ranks.size - 1) / 2
    for averaged, kind, number in ranks.run(body):
        assert kind is float
        assert number == pytest.approx(mean)
        assert averaged["integer"] == averaged["one"] == pytest.approx(mean)
        assert averaged["flag"] == pytest.approx(1 / ranks.size)
        assert averaged["array"].dtype == np.float64
        np.testing.assert_allclose(averaged["array"], np.full(3, mean))


@pytest.mark.parametrize("ranks", TWO, indirect=True)
def test_what_cannot_be_averaged_is_the_same_error_on_both_ranks(ranks):
    cases = [
        (([{"loss": 1.0}, {"loss": 1.0, "extra": 2.0}],), "metric 'extra' is not there on every rank"),
        (([np.zeros(2), np.zeros(3)],), "has shape (2,) on rank 0 and (3,) on rank 1"),
        (([1.0, 1.0], 0), "count=0 on every rank"),
        (([1.0, 1.0], -1), "count=-1; it must be a number >= 0"),
    ]
    for arguments, expected in cases:
        first, second = ranks.run(complaint, *arguments)
        assert first == second
        assert expected in first


@pytest.mark.parametrize("ranks", EVERYWHERE, indirect=True)
def test_sums_over_ranks_hold_names_that_only_some_ranks_know(ranks):
    def body():
        from hvdkit.job.world import current

        sums = Sums()
        rank = current().rank
        sums.add("loss", 2.0 * (rank + 1), rank + 1)
        if rank == 0:
            sums.add("rare", 3.0, 4)
        joined = sums.over_ranks(current())
        return joined.means(), joined.count("loss")

    total = ranks.size * (ranks.size + 1) / 2
    assert ranks.run(body) == [({"loss": 2.0, "rare": 0.75}, total)] * ranks.size


def test_sums_of_nothing_are_nan():
    sums = Sums()
    sums.add("loss", 0.0, 0)
    assert math.isnan(sums.means()["loss"])


@pytest.mark.processes
def test_f07_averaging_before_the_start_names_apply():
    done = launch_fresh("from hvdkit.job.world import current\ncurrent().allreduce(1.0)\n")
    assert done.code == 1
    assert "hvdkit.apply(...)" in done.stderr
