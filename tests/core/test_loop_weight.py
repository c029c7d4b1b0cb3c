"""Gradients weigh what the batch counts for that a loop is at; loops that do not tell which one that is are refused."""

from __future__ import annotations

import pytest

from hvdkit.errors import RecipeError
from hvdkit.training.loop_weight import LOOP_WEIGHT


class Reducer:
    """Counts passes, and notes the weights that it is given."""

    def __init__(self):
        self.passes, self.weights = 0, []
        LOOP_WEIGHT.follow(self)

    def weigh(self, weight):
        self.weights.append(weight)

    def run(self):
        LOOP_WEIGHT.count_pass()
        self.passes += 1
        return LOOP_WEIGHT.now


class Batch:
    def __init__(self, weight):
        self.weight = weight


def batches(*weights):
    with LOOP_WEIGHT.loop(object()) as come_to:
        for batch in map(Batch, weights):
            come_to(batch.weight, batch)
            yield batch


def test_each_pass_has_the_weight_of_its_batch():
    reducer = Reducer()
    assert [reducer.run() for _ in range(2) for _ in batches(1.0, 1.0, 0.6)] == [1.0, 1.0, 0.6] * 2
    assert LOOP_WEIGHT.now == 1.0
    assert reducer.weights == [1.0, 0.6, 1.0, 0.6, 1.0]


def test_a_loop_that_is_left_early_or_by_an_error_leaves_no_weight():
    reducer = Reducer()
    for _ in batches(0.5, 1.0):
        reducer.run()
        break
    assert LOOP_WEIGHT.now == 1.0
    with pytest.raises(KeyError, match="lost"):
        [{}["lost"] for _ in batches(0.5, 1.0)]
    assert [reducer.run() for _ in batches(1.0)] == [1.0]


def test_a_loop_inside_another_gives_its_weight_back():
    reducer = Reducer()
    found = []
    for _ in batches(1.0, 1.0):
        found += [reducer.run(), *(reducer.run() for _ in batches(1.0, 1.0)), reducer.run()]
    assert found == [1.0] * 8


def test_a_look_at_the_batches_without_a_pass_is_no_matter():
    reducer = Reducer()
    assert len(list(batches(1.0, 1.0, 0.6))) == 3
    assert reducer.run() == 1.0
    assert [reducer.run() for _ in batches(1.0, 1.0, 0.6)] == [1.0, 1.0, 0.6]
    assert len(list(batches(1.0, 1.0, 0.6))) == 3
    assert reducer.run() == 1.0


def test_batches_that_are_kept_are_no_matter_for_a_loop_that_weighs():
    reducer, kept = Reducer(), list(batches(1.0, 0.6))
    with LOOP_WEIGHT.loop_that_weighs():
        assert reducer.run() == 1.0
    with pytest.raises(RecipeError, match="read ahead"):
        reducer.run()
    assert reducer.run() == 1.0
    assert len(kept) == 2


def ahead(source):
    """Yield what a source yields, one later than it is read."""
    held = next(source)
    for entry in source:
        yield held
        held = entry
    yield held


def in_a_list(reducer):
    for _ in list(batches(1.0, 0.6)):
        reducer.run()


def one_ahead(reducer):
    for _ in ahead(batches(1.0, 1.0, 1.0, 0.6)):
        reducer.run()


def side_by_side(reducer):
    for _ in zip(batches(1.0, 0.6), batches(1.0, 1.0), strict=True):
        reducer.run()


@pytest.mark.parametrize(
    ("loop", "words", "passes"),
    [(in_a_list, "read ahead", 0), (one_ahead, "read ahead", 2), (side_by_side, "two loops over shard's batches", 1)],
)
def test_a_loop_whose_short_batch_cannot_be_told_is_refused(loop, words, passes):
    reducer = Reducer()
    with pytest.raises(RecipeError, match=words):
        loop(reducer)
    assert reducer.passes == passes


def test_without_a_short_batch_any_loop_will_do():
    reducer = Reducer()
    for loop in (ahead(batches(1.0, 1.0)), list(batches(1.0, 1.0)), zip(batches(1.0), batches(1.0), strict=True)):
        assert {reducer.run() for _ in loop} == {1.0}
