"""Inputs and targets are trees of arrays of one length."""

from collections import namedtuple

import numpy as np
import pytest

from hvdkit.errors import DataError, RecipeError
from hvdkit.recipe.trees import leaves, map_tree, samples_of

Point = namedtuple("Point", "left right")
A, B = np.zeros((3, 2)), np.ones(3)


@pytest.mark.parametrize(
    ("tree", "count"),
    [
        (A, 1),
        ((A, B), 2),
        ([A, B], 2),
        ({"a": A, "b": (B, B)}, 3),
        (Point(A, B), 2),
        ([1, 2, 3], 1),
        ([[1, 2], [3, 4]], 1),
    ],
)
def test_a_tree_keeps_its_form(tree, count):
    assert len(list(leaves(tree))) == count
    mapped = map_tree(np.asarray, tree)
    assert len(list(leaves(mapped))) == count
    assert type(mapped) is (np.ndarray if count == 1 else type(tree))


def test_all_arrays_have_one_length():
    assert samples_of(({"image": A, "text": B}, B)) == 3
    for pair in ((A, B[:2]), ((A, B[:2]), B), (A, {"a": B, "b": B[:1]})):
        with pytest.raises(DataError, match="3"):
            samples_of(pair)
    with pytest.raises(RecipeError, match="class list cannot be sharded"):
        samples_of([A, B])
