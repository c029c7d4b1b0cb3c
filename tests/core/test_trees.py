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
    for data in (A, [A, B], (A, B, B), {"a": A, "b": [B]}, ([1, 2, 3], [4, 5, 6], B)):
        assert samples_of(data) == 3
    with pytest.raises(DataError, match=r"data\['a'\] has 3 samples but data\['b'\]\[1\] has 2"):
        samples_of({"a": A, "b": (B, B[:2])})
    for data in ([1, 2], "text", 3, object(), (), {}, {"a": "text"}, (A, object())):
        with pytest.raises(RecipeError, match="cannot be sharded"):
            samples_of(data)


@pytest.mark.parametrize("data", [[(A, A), (A, A)], [A] * 5])
def test_r33_a_list_that_could_be_samples_is_refused(data):
    with pytest.raises(RecipeError, match="give a tuple of arrays"):
        samples_of(data)
