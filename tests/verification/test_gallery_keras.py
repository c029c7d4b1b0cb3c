"""Ten legitimate recipes for keras are verified without a false alarm, on each library under Keras."""

from __future__ import annotations

import pytest
from gallery_runs import cases, check_gallery_recipe, recipes_in
from ranks import on

FIRST = "transformer"
SIZES = (2, 3)
# of recipes that need TensorFlow's own data sets
ON_TENSORFLOW = {"own_samples"}
ON_TORCH = on("keras", ("torch", "mpi"), SIZES, env={"KERAS_BACKEND": "torch"})
ON_JAX = on("keras", ("mpi",), SIZES, env={"KERAS_BACKEND": "jax"})


@pytest.mark.parametrize(("name", "combination"), cases("keras", FIRST, on("keras", ("mpi",), SIZES)))
def test_a_recipe_of_the_gallery_is_verified(name, combination):
    check_gallery_recipe("keras", name, combination)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "combination"), cases("keras", None, [*ON_TORCH, *ON_JAX], without=ON_TENSORFLOW))
def test_a_recipe_of_the_gallery_is_verified_on_torch_and_jax(name, combination):
    check_gallery_recipe("keras", name, combination)


def test_there_are_ten_recipes():
    assert len(recipes_in("keras")) >= 10
