"""Ten legitimate recipes for tf are verified without a false alarm."""

from __future__ import annotations

import pytest
from gallery_runs import cases, check_gallery_recipe, recipes_in
from ranks import on

FIRST = "vae"


@pytest.mark.parametrize(("name", "combination"), cases("tf", FIRST, on("tf", ("mpi",), (2, 3))))
def test_a_recipe_of_the_gallery_is_verified(name, combination):
    check_gallery_recipe("tf", name, combination)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "combination"), cases("tf", None, on("tf", ("horovod",))))
def test_a_recipe_of_the_gallery_is_verified_with_horovod(name, combination):
    check_gallery_recipe("tf", name, combination)


def test_there_are_ten_recipes():
    assert len(recipes_in("tf")) >= 10
