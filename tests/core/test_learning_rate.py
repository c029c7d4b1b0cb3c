"""The learning rate of every update, and who is on which node."""

from __future__ import annotations

import math

import pytest

from hvdkit.errors import RecipeError
from hvdkit.recipe.plan import LearningRate, local_ranks, scale_factor


def test_warm_up_of_three_epochs_from_001_to_008_at_the_epoch_ends():
    rates = LearningRate(base=0.01, target=0.08, steps=60000 // 8 // 512, warmup_epochs=3)
    assert rates.steps == 14
    assert [round(rates.at(14 * epoch - 1), 4) for epoch in (1, 2, 3)] == [0.0333, 0.0567, 0.08]
    assert round(rates.at(0), 5) == 0.01167
    assert rates.at(42) == rates.at(1000) == 0.08


def test_without_warm_up_the_target_holds_from_the_first_step():
    assert LearningRate(0.01, 0.08, 14).at(0) == 0.08


def test_a_schedule_multiplies_the_scaled_rate_after_warm_up():
    rates = LearningRate(0.1, 0.4, 10, warmup_epochs=1, schedule=lambda epoch: 0.5 if epoch >= 3 else 1.0)
    assert [rates.at(9), rates.at(10), rates.at(29), rates.at(30)] == [0.4, 0.4, 0.4, 0.2]


def test_fractional_warm_up_and_one_process():
    assert LearningRate(0.1, 0.2, 10, warmup_epochs=0.5).at(4) == 0.2
    assert {LearningRate(0.1, 0.1, 10, warmup_epochs=2).at(step) for step in range(30)} == {0.1}


def test_scaling_rules():
    assert scale_factor("linear", 8) == 8.0
    assert scale_factor("sqrt", 8) == math.sqrt(8)
    assert scale_factor("none", 8) == 1.0
    assert scale_factor(lambda ratio: ratio / 256, 512) == 2.0
    with pytest.raises(RecipeError, match="'log' is unknown; use linear, sqrt, none or a callable"):
        scale_factor("log", 2)
    with pytest.raises(RecipeError, match=r"returned 0\.0 for 2; it must be > 0"):
        scale_factor(lambda _: 0, 2)


def test_two_hosts_of_four_have_ranks_4_to_7_and_local_ranks_0_to_3_on_the_second():
    placed = local_ranks(["one"] * 4 + ["two"] * 4)
    assert placed[4:] == [(local, 4, 1) for local in range(4)]
    assert placed[:4] == [(local, 4, 0) for local in range(4)]


def test_local_ranks_where_hosts_alternate_or_differ_in_size():
    assert local_ranks(["a", "b", "a", "b", "b"]) == [(0, 2, 0), (0, 3, 1), (1, 2, 0), (1, 3, 1), (2, 3, 1)]


@pytest.mark.parametrize("factor", [float("nan"), float("inf")])
def test_a_schedule_that_is_not_finite_is_refused(factor):
    rates = LearningRate(0.1, 0.2, 4, schedule=lambda epoch: 1.0 if epoch < 1 else factor)
    assert rates.at(3) == 0.2
    with pytest.raises(RecipeError, match=f"the schedule returned {factor} at epoch 1.5; it must be finite"):
        rates.at(6)
