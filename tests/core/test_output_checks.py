"""What outputs, labels and losses must be, in every framework."""

from __future__ import annotations

import numpy as np
import pytest

import hvdkit
from hvdkit.errors import DataError, ModelError
from hvdkit.training.checks import accuracy_form, check_loss, check_outputs

LOGITS = np.array([[0.1, 2.0, -1.0], [0.0, 0.5, 0.4]])


@pytest.fixture
def world():
    return hvdkit.init("serial")


def test_logits_with_labels_in_range_pass(world):
    check_outputs(LOGITS, np.array([0, 2]), world)
    check_outputs(np.array([[0.5], [0.5]]), np.array([0.5, 1.5]), world)


@pytest.mark.parametrize("activated", [False, True])
def test_probabilities_are_refused(world, activated):
    outputs = LOGITS if activated else np.exp(LOGITS) / np.exp(LOGITS).sum(1, keepdims=True)
    with pytest.raises(ModelError, match="are probabilities, but this loss takes logits"):
        check_outputs(outputs, np.array([0, 2]), world, activated=activated)


@pytest.mark.parametrize("label", [-1, 3])
def test_a_label_out_of_range_is_named(world, label):
    with pytest.raises(DataError, match=f"label {label} is out of range; the model has 3 outputs"):
        check_outputs(LOGITS, np.array([0, label]), world)


@pytest.mark.parametrize(
    ("outputs", "targets", "axis"),
    [
        ((8, 3), (8,), 1),
        ((8, 3), (8, 1), 1),
        ((None, 3), (8,), -1),
        ((8, 3), (None, None), -1),
        ((8, 3, 5, 6), (8, 5, 6), 1),
        ((8, 5, 6, 3), (8, 5, 6), -1),
    ],
)
def test_accuracy_takes_scores_and_labels(outputs, targets, axis):
    accuracy_form(outputs, targets, class_axis=axis)


@pytest.mark.parametrize(("outputs", "targets"), [((8, 1), (8,)), ((8,), (8,)), ((8, 3), (8, 3)), ((8, 3), (7,))])
def test_r19_accuracy_refuses_other_shapes(outputs, targets):
    with pytest.raises(ModelError, match=r"metric 'accuracy' takes scores of shape \(n, classes\)"):
        accuracy_form(outputs, targets, class_axis=1)


def test_a_loss_that_is_nan_ends_training():
    check_loss(0.0)
    check_loss(float("inf"))
    with pytest.raises(ModelError, match="the training loss is NaN"):
        check_loss(float("nan"))
