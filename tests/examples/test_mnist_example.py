"""The example on the 5,000 digits, and on all of Fashion-MNIST, with 2 processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from example_runs import available, every, keras_elsewhere, one_engine_each
from ranks import UNDER_KERAS_2, Combination, slowly

EVERY = one_engine_each([*every(), *keras_elsewhere()])
FASHION = Path("/usr/share/datasets/fashion-mnist")
SUMMARY = {
    "framework",
    "engine",
    "size",
    "global_batch_size",
    "steps_per_epoch",
    "learning_rate",
    "seconds_to_first_step",
    "epochs",
    "weights_sha256",
}
EPOCH = {"epoch", "loss", "accuracy", "val_loss", "val_accuracy", "seconds", "samples_per_second"}


def five_epochs(summaries, combination):
    return summaries.of(combination, "--epochs", "5")


@pytest.mark.parametrize("combination", EVERY)
def test_five_epochs_reach_the_accuracy_with_equal_weights(summaries, combination):
    summary = five_epochs(summaries, combination)
    assert set(summary) >= SUMMARY
    assert (summary["framework"], summary["engine"]) == (combination.framework, combination.engine)
    assert (summary["size"], summary["global_batch_size"], summary["steps_per_epoch"]) == (2, 128, 32)
    assert summary["learning_rate"] == pytest.approx(0.002)
    assert summary["seconds_to_first_step"] > 0
    assert [record["epoch"] for record in summary["epochs"]] == [1, 2, 3, 4, 5]
    assert all(set(record) >= EPOCH for record in summary["epochs"])
    first, second = summary["weights_sha256"]
    assert first == second
    assert len(first) == 64
    assert summary["epochs"][-1]["val_accuracy"] >= 0.94


@pytest.mark.slow
def test_frameworks_and_engines_end_within_two_hundredths(summaries):
    here = available(every())
    if len({combination.framework for combination in here}) < 2:
        pytest.skip("there are no two frameworks here")
    ends = {str(one): five_epochs(summaries, one)["epochs"][-1]["val_accuracy"] for one in here}
    assert max(ends.values()) - min(ends.values()) <= 0.02, ends


@pytest.mark.parametrize("combination", slowly(EVERY) if UNDER_KERAS_2 else EVERY)
def test_two_halves_of_a_batch_train_like_one_process(summaries, combination):
    flags = ("--epochs", "1", "--lr", "0.001", "--lr-scaling", "none", "--warmup-epochs", "0")
    alone = Combination(combination.framework, "serial", 1, combination.env)
    one = summaries.inside(alone, "--batch-size", "128", *flags)
    two = summaries.inside(combination, "--batch-size", "64", *flags)
    assert (one["size"], two["size"]) == (1, 2)
    assert one["global_batch_size"] == two["global_batch_size"] == 128
    assert one["learning_rate"] == two["learning_rate"] == 0.001
    assert two["epochs"][0]["loss"] == pytest.approx(one["epochs"][0]["loss"], rel=1e-3)


@pytest.mark.slow
@pytest.mark.skipif(not FASHION.is_dir(), reason="Debian's package dataset-fashion-mnist is not installed")
@pytest.mark.parametrize("combination", EVERY)
def test_all_of_fashion_mnist(summaries, combination):
    flags = ("--data-dir", str(FASHION), "--epochs", "1")
    summary = summaries.of(combination, *flags)
    assert summary["steps_per_epoch"] == 469
    assert len(set(summary["weights_sha256"])) == 1
    # chance is 0.1; one epoch of this net was seen to reach 0.8 and more
    assert summary["epochs"][0]["val_accuracy"] > 0.7
