"""Targets that runs which go on from a checkpoint must stop at, and where a file is saved inside an epoch."""

from __future__ import annotations

import pytest

import hvdkit
from hvdkit.recipe.stopping import FALLING, parse_target
from hvdkit.tools.verification.layout import Layout
from hvdkit.tools.verification.resuming import inside_update, keeps_states, targets


def stops_after(target, records):
    """Return the first epoch at which a target is reached, else the last."""
    (name, held), *_ = target.items()
    direction, value = parse_target(name, held)
    for epoch, record in enumerate(records, 1):
        found = record.get(f"val_{name}", record.get(name))
        if found <= value if direction == FALLING else found >= value:
            return epoch
    return len(records)


@pytest.mark.parametrize(
    ("values", "due"),
    [
        ([1.0, 0.8, 0.6], [2]),
        ([1.0, 1.1, 0.9], [3]),
        ([1.0, 1.2, 1.3], [1, 3]),
        ([1.0, 1.0, 1.0], [1, 3]),
    ],
)
@pytest.mark.parametrize("name", ["loss", "val_loss"])
def test_targets_are_reached_after_the_epochs_that_they_are_given_with(name, values, due):
    records = [{name: value, "accuracy": 0.0} for value in values]
    found = list(targets({name.removeprefix("val_"): 0.01}, records))
    assert [epoch for _, epoch in found] == due
    assert [stops_after(target, records) for target, _ in found] == due


def test_targets_of_an_accuracy_are_accuracies():
    for values in ([0.5, 0.7, 0.6], [0.9, 0.5, 0.5], [1.0, 0.5, 0.5]):
        records = [{"accuracy": value} for value in values]
        for target, due in targets({"accuracy": 0.99}, records):
            hvdkit.Recipe(model="mnist_cnn", data=lambda: 1, optimizer=hvdkit.SGD(0.1), stop_at=target)
            assert stops_after(target, records) == due


def test_a_file_is_saved_inside_an_epoch_that_has_an_inside():
    assert inside_update(Layout(2, 3, 1, 8, "float32")) is None
    assert inside_update(Layout(2, 3, 2, 16, "float32")) == 3
    assert inside_update(Layout(2, 5, 4, 32, "float32")) == 7
    recipe = hvdkit.Recipe(model="mnist_cnn", data=lambda: 1, optimizer=hvdkit.SGD(0.1), metrics=("accuracy",))
    assert not keeps_states(recipe)
