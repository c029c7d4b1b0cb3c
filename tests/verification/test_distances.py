"""Distances between the arrays of two runs."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hvdkit.tools.verification.distances import amount, distance, first_apart, largest
from hvdkit.tools.verification.rounding import Rounding

START = {"w": np.zeros(3), "b": np.zeros(2)}
MOVED = {"w": np.array([3.0, 0.0, 0.0]), "b": np.array([0.0, 4.0])}


def test_the_distance_is_relative_to_what_has_moved():
    other = {"w": np.array([3.0, 0.5, 0.0]), "b": MOVED["b"]}
    assert distance(other, MOVED, START) == pytest.approx(0.1)
    assert distance(MOVED, MOVED, START) == 0.0
    small = [{name: value * 1e-6 for name, value in arrays.items()} for arrays in (other, MOVED)]
    assert distance(*small, START) == pytest.approx(0.1)


def test_what_moves_where_nothing_should_is_no_number():
    assert math.isnan(distance(MOVED, START, START))
    assert distance(START, START, START) == 0.0


def test_float32_is_compared_in_float64():
    a, b = np.float32(1.0), np.nextafter(np.float32(1.0), np.float32(2.0))
    assert distance({"w": np.array([a])}, {"w": np.array([b])}, {"w": np.zeros(1)}) == pytest.approx(2.0**-23)


def test_the_largest_difference_of_one_array():
    assert largest({"w": np.array([1.0, 5.0])}, {"w": np.array([1.0, 2.0])}, "w") == 3.0
    assert largest({"w": np.array([np.nan])}, {"w": np.array([2.0])}, "w") == math.inf
    assert largest({"w": np.zeros(2)}, {"w": np.zeros(3)}, "w") == math.inf
    assert largest({}, {"w": np.zeros(3)}, "w") == math.inf
    assert amount(0.25) == "by 2.5e-01"
    assert amount(math.inf) == "in shape or numbers, or is missing"


def test_the_first_array_over_the_limit_is_named_else_the_furthest():
    other = {"w": np.array([3.0, 0.03, 0.0]), "b": np.array([0.0, 4.4])}
    assert first_apart(other, MOVED, START, 0.5) == "b"
    assert first_apart(other, MOVED, START, 0.05) == "b"
    assert first_apart(other, MOVED, START, 0.005) == "w"
    assert first_apart({}, MOVED, START, 0.1) is None


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rounding_moves_numbers_by_at_most_eight_units_in_the_last_place(dtype):
    value = np.random.default_rng(0).normal(size=1000).astype(dtype)
    moved = Rounding(1).moved(value)
    assert moved.dtype == value.dtype
    units = np.abs(moved - value) / np.spacing(np.abs(value))
    assert 7 <= units.max() <= 16  # the unit itself halves below a power of two
    assert (units > 0).mean() > 0.9
    assert np.array_equal(Rounding(1).moved(value), moved)
    assert Rounding(1).moved(np.arange(3)).tolist() == [0, 1, 2]
