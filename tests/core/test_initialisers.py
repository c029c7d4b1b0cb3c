"""Initial weights of named models come from the seed and the name of each array alone."""

from __future__ import annotations

import math

import numpy as np
import pytest

import hvdkit
from hvdkit.errors import ModelError, RecipeError
from hvdkit.training.initialisers import check_names, draw, has_small_stem, image_task

SHAPES = {"conv/kernel": (3, 3, 8, 16), "dense/kernel": (40, 10), "dense/bias": (10,), "a_bn2/gamma": (16,)}


def test_an_array_depends_on_the_seed_and_its_own_name():
    alone = draw({"dense/kernel": (40, 10)}, 3)["dense/kernel"]
    assert (alone == draw(SHAPES, 3)["dense/kernel"]).all()
    assert (alone != draw(SHAPES, 4)["dense/kernel"]).any()
    assert (alone != draw({"other/kernel": (40, 10)}, 3)["other/kernel"]).any()
    assert {value.dtype for value in draw(SHAPES, 3).values()} == {np.dtype("float32")}


def test_glorots_limit_is_kept_and_filled():
    found = draw(SHAPES, 0)
    for name, fans in (("conv/kernel", 9 * (8 + 16)), ("dense/kernel", 50)):
        assert 0.9 < np.abs(found[name]).max() / math.sqrt(6.0 / fans) <= 1.0
    assert found["dense/bias"].tolist() == [0.0] * 10
    assert found["a_bn2/gamma"].tolist() == [1.0] * 16


def test_residual_nets_begin_as_the_identity_with_hes_deviation():
    found = draw(SHAPES, 0, rectified=True)
    assert found["a_bn2/gamma"].tolist() == [0.0] * 16
    assert found["conv/kernel"].std() == pytest.approx(math.sqrt(2.0 / (9 * 16)), rel=0.05)


def test_arrays_of_another_model_are_named():
    check_names(SHAPES, list(SHAPES))
    with pytest.raises(ModelError, match="array 'dense/bias' is missing"):
        check_names(SHAPES.keys() - {"dense/bias"}, SHAPES)
    with pytest.raises(ModelError, match="array 'extra' is not in the model"):
        check_names([*SHAPES, "extra"], SHAPES)


def test_a_task_is_read_from_the_data():
    x, y = np.zeros((4, 32, 28, 3), np.float32), np.zeros(4, np.int64)
    assert image_task("resnet34", hvdkit.Data(train=(x, y), classes=7)) == ((32, 28, 3), 7)
    for data in (None, hvdkit.Data(train=(x, y)), hvdkit.Data(train=(x[0], y), classes=7)):
        with pytest.raises(RecipeError, match="model 'resnet34' takes image size and classes from"):
            image_task("resnet34", data)


def test_small_images_have_a_small_stem_unless_asked_otherwise():
    assert has_small_stem((63, 64, 3), None)
    assert not has_small_stem((64, 64, 3), None)
    assert not has_small_stem((32, 32, 3), False)
