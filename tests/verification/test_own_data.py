"""``hvdkit verify`` on data sets of the user's own in tf and keras: what ranks are given is what one process reads."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from ranks import UNDER_KERAS_2, on, slowly
from script_runs import assert_named
from verify_runs import run_verify

RECIPES = str(Path(__file__).parent / "own_data_recipes.py")
ON_TF, ON_KERAS = on("tf", ("mpi",)), on("keras", ("mpi",))
ON_JAX = on("keras", ("mpi",), env={"KERAS_BACKEND": "jax"})

# of the environments with TensorFlow, one has nothing beside it
ALONE = find_spec("torch") is None and not UNDER_KERAS_2

# tf.data shuffles anew, and so does what a PyDataset does at an epoch's end: files hold neither
ANEW = "updates behind a resume (a data set of your own, whose order begins anew)"
FAULTS = {
    "one_share_for_all": "epoch 1: 7 of 14 samples missing, 7 too many",
    "one_order_for_all_epochs": "3 epochs have the same order",
    "validated_by_halves": "an evaluation: 5 of 11 samples missing, 6 too many",
    "one_share_of_an_unknown_number": "rank 1: 24 samples that are another rank's",
}
OF_BATCHES = {"one_batch_for_all": "4 of 8 samples missing", "batches_left_out": "samples missing"}


@pytest.mark.parametrize("combination", [*(ON_TF if ALONE else slowly(ON_TF)), *slowly(ON_KERAS)])
def test_samples_that_never_arrive_are_the_fault_of_the_shard(combination):
    report, finished = run_verify(f"{RECIPES}:a_third_never_arrives", combination, "--steps", "6")
    assert_named(report, finished, "shard", "samples missing")


@pytest.mark.slow
@pytest.mark.parametrize("combination", ON_TF)
@pytest.mark.parametrize("name", FAULTS)
def test_samples_of_another_rank_or_order_are_the_fault_of_the_shard(name, combination):
    report, finished = run_verify(f"{RECIPES}:{name}", combination, "--steps", "6")
    assert_named(report, finished, "shard", FAULTS[name])


@pytest.mark.slow
@pytest.mark.parametrize("combination", [*ON_KERAS, *ON_JAX])
@pytest.mark.parametrize("name", OF_BATCHES)
def test_batches_of_another_rank_are_the_fault_of_the_shard(name, combination):
    report, finished = run_verify(f"{RECIPES}:{name}", combination, "--steps", "6")
    assert_named(report, finished, "shard", OF_BATCHES[name])


def check_verified(name, combination, left):
    report, finished = run_verify(f"{RECIPES}:{name}", combination, "--steps", "6")
    assert finished.code == 0, finished.stdout + finished.stderr
    assert report["passed"]
    assert set(report["not_checked"]) <= left


@pytest.mark.slow
@pytest.mark.parametrize("combination", [*ON_TF, *ON_KERAS])
@pytest.mark.parametrize("name", ["in_order", "noisy", "unknown_number"])
def test_samples_of_a_data_set_are_verified(name, combination):
    check_verified(name, combination, set() if name == "in_order" else {ANEW})


@pytest.mark.slow
@pytest.mark.parametrize("combination", [*ON_KERAS, *ON_JAX])
@pytest.mark.parametrize("name", ["shuffled_batches", "weighed"])
def test_batches_and_weights_are_verified(name, combination):
    check_verified(name, combination, set() if name == "weighed" else {ANEW})
