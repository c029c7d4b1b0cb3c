"""Which samples each rank takes: worked examples, and what holds for every number of samples and ranks."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from hvdkit.errors import DataError, RecipeError
from hvdkit.recipe.plan import ShardPlan, steps_for_rank

GRID = [
    (samples, batch, size, accumulate)
    for samples, batch, size, accumulate in itertools.product((1, 2, 5, 10, 24, 37), (1, 3, 4), (1, 2, 3, 5), (1, 2, 4))
]


def epoch(plan, number=0):
    """Return the micro-batches of every rank, as one list per rank."""
    return [list(plan.micro_batches(number, rank)) for rank in range(plan.size)]


def counted(plan, number=0):
    return [part.indices for rank in epoch(plan, number) for part in rank if part.weight]


def test_1024_samples_in_batches_of_32_on_8_processes_make_4_steps():
    plan = ShardPlan(1024, 32, 8)
    assert plan.steps == 4
    assert ShardPlan(1024, 32, 1).steps == 32
    assert [sum(len(part.indices) for part in rank) for rank in epoch(plan)] == [128] * 8


def test_ten_samples_over_three_processes_exact():
    plan = ShardPlan(10, 2, 3, shuffle=False)
    assert [[part.indices.tolist() for part in rank] for rank in epoch(plan)] == [
        [[0, 3], [6, 9]],
        [[1, 4], [7]],
        [[2, 5], [8]],
    ]
    assert [[part.weight for part in rank] for rank in epoch(plan)] == [[1.0, 1.5], [1.0, 0.75], [1.0, 0.75]]


def test_ten_samples_over_three_processes_padded_are_four_each_with_two_repeated():
    taken = np.concatenate(counted(ShardPlan(10, 4, 3, uneven="pad")))
    assert len(taken) == 12
    assert sorted(np.bincount(taken)) == [1] * 8 + [2] * 2


def test_ten_samples_over_three_processes_dropped():
    plan = ShardPlan(10, 2, 3, uneven="drop")
    assert (plan.steps, plan.dropped) == (1, 4)
    assert len(np.unique(np.concatenate(counted(plan)))) == 6


@pytest.mark.parametrize(("samples", "batch", "size", "accumulate"), GRID)
def test_c01_shards_are_disjoint_and_complete_and_equally_long(samples, batch, size, accumulate):
    plan = ShardPlan(samples, batch, size, accumulate, seed=3)
    ranks = epoch(plan, 1)
    assert sorted(np.concatenate(counted(plan, 1)).tolist()) == list(range(samples))
    assert {len(rank) for rank in ranks} == {plan.passes()}
    for rank in ranks:
        assert sum(part.last for part in rank) == plan.steps == math.ceil(samples / (batch * size * accumulate))
        assert all(1 <= len(part.indices) <= batch for part in rank)
    assert [[part.last for part in rank] for rank in ranks] == [[part.last for part in ranks[0]]] * size


UNEVEN = [
    (*numbers, uneven)
    for numbers in GRID[::7]
    for uneven in ("exact", "pad", "drop")
    if uneven != "drop" or numbers[0] >= math.prod(numbers[1:])
]


@pytest.mark.parametrize(("samples", "batch", "size", "accumulate", "uneven"), UNEVEN)
def test_weighted_means_over_ranks_and_passes_are_the_mean_over_samples(samples, batch, size, accumulate, uneven):
    plan = ShardPlan(samples, batch, size, accumulate, uneven)
    values = np.random.default_rng(0).normal(size=samples)
    updates = zip(*[_updates(rank) for rank in epoch(plan)], strict=True)
    for update in updates:
        passes = len(update[0])
        reduced = sum(values[p.indices].mean() * p.weight for rank in update for p in rank) / (size * passes)
        taken = np.concatenate([p.indices for rank in update for p in rank if p.weight])
        assert reduced == pytest.approx(values[taken].mean(), rel=1e-12)


def _updates(parts):
    """Cut one rank's micro-batches into updates."""
    updates, current = [], []
    for part in parts:
        current.append(part)
        if part.last:
            updates.append(current)
            current = []
    return updates


@pytest.mark.parametrize("size", [1, 2, 3, 4, 6, 12])
def test_the_samples_of_an_update_do_not_depend_on_the_number_of_processes(size):
    plan, alone = ShardPlan(100, 12 // size, size, seed=7), ShardPlan(100, 12, seed=7)
    for together, single in zip(_by_update(plan), _by_update(alone), strict=True):
        assert sorted(together) == sorted(single)


def _by_update(plan):
    return [
        np.concatenate([p.indices for p in parts if p.weight]).tolist() for parts in zip(*epoch(plan, 2), strict=True)
    ]


def test_d05_the_order_differs_between_epochs_and_comes_back_with_the_seed():
    plan = ShardPlan(20, 2, 2, seed=5)
    orders = [plan.order(number).tolist() for number in range(3)]
    assert len({tuple(order) for order in orders}) == 3
    assert [ShardPlan(20, 2, 2, seed=5).order(number).tolist() for number in range(3)] == orders
    assert ShardPlan(20, 2, 2, seed=6).order(0).tolist() != orders[0]
    assert ShardPlan(20, 2, shuffle=False).order(2).tolist() == list(range(20))


def test_steps_per_epoch_is_counted_for_one_process_and_divided():
    assert steps_for_rank(500, 8) == 62
    with pytest.raises(RecipeError, match=r"Recipe\.steps_per_epoch is 3.*4 processes no step is left"):
        steps_for_rank(3, 4)
    plan = ShardPlan(100, 5, 2, limit=4)
    assert (plan.steps, plan.passes(), plan.dropped) == (4, 4, 60)
    with pytest.raises(DataError, match=r"11 steps per epoch.*make only 10"):
        ShardPlan(100, 5, 2, limit=11)


@pytest.mark.parametrize("samples", [1, 3, 4])
def test_g04_fewer_samples_than_processes_make_one_step_on_each(samples):
    ranks = epoch(ShardPlan(samples, 2, 4))
    assert [len(rank) for rank in ranks] == [1] * 4
    assert [rank[0].weight for rank in ranks] == [4 / samples if r < samples else 0.0 for r in range(4)]


def test_empty_or_too_few_samples_are_refused_with_the_remedy():
    with pytest.raises(DataError, match="the data are empty"):
        ShardPlan(0, 4)
    with pytest.raises(DataError, match="7 samples do not fill one global batch of 8; lower batch_size"):
        ShardPlan(7, 4, 2, uneven="drop")


@pytest.mark.parametrize(
    ("field", "value"), [("batch_size", 0), ("accumulate", 0), ("limit", 0), ("uneven", "wrap"), ("batch_size", 2.5)]
)
def test_wrong_arguments_are_named(field, value):
    with pytest.raises(RecipeError, match=f"{field} is {value!r}; it must be"):
        ShardPlan(**{"samples": 10, "batch_size": 2, field: value})
