"""One rank's batches: a pair with what it counts for, in the order of the plan, epoch after epoch."""

from __future__ import annotations

import numpy as np
import pytest

from hvdkit.recipe.plan import ShardPlan
from hvdkit.training.batch import NO_TARGETS
from hvdkit.training.batches import Batch, PlannedBatches, StreamBatches, current_batch_counts
from hvdkit.training.loop_weight import LOOP_WEIGHT


class Numbers:
    """Samples 0, 1, 2, ... with ten times themselves as targets."""

    targets = None
    drawn = True

    def load(self, parts):
        for part in parts:
            yield part.indices, part.indices * 10


def planned(samples=10, rank=0, **options):
    return PlannedBatches(Numbers(), ShardPlan(samples, **{"batch_size": 2, "size": 2, "seed": 4, **options}), rank)


def test_a_batch_is_unpacked_and_indexed_as_a_pair():
    batch = Batch("x", "y", 2)
    inputs, targets = batch
    assert (inputs, targets) == (batch[0], batch[1]) == batch[:2] == ("x", "y")
    assert len(batch) == 2


def test_r33_two_columns_are_a_pair_and_two_samples_are_not():
    x, y = np.zeros((2, 3)), np.zeros(2)
    for tree in ((x, y), [x, y], ("x", "y")):
        batch = Batch.of(tree, 2, 2)
        assert batch.targets is tree[1]
        assert batch.given is batch
    wide = np.zeros((3, 4))
    for tree in (x, [wide, wide], ["a", "b"], [{"x": wide}, {"x": wide}], (x, x, y), {"x": x, "y": y}):
        batch = Batch.of(tree, 2, 2)
        assert batch.targets is NO_TARGETS
        assert batch.given is tree


def test_every_sample_is_on_one_rank_in_every_epoch():
    ranks = [planned(rank=rank) for rank in range(2)]
    orders = []
    for epoch in range(2):
        found = [list(batches) for batches in ranks]
        assert [[batch.number for batch in own] for own in found] == [[0, 1, 2]] * 2
        assert {batch.epoch for own in found for batch in own} == {epoch}
        order = [index for own in found for batch in own for index in batch.indices.tolist() if batch.count]
        assert sorted(order) == list(range(10))
        assert all((batch.targets == batch.inputs * 10).all() for own in found for batch in own)
        orders.append(order)
    assert orders[0] != orders[1]


def test_an_epoch_can_be_taken_again():
    batches = planned()
    first = [batch.indices.tolist() for batch in batches]
    assert [batch.indices.tolist() for batch in batches] != first
    batches.set_epoch(0)
    assert [batch.indices.tolist() for batch in batches] == first


def test_the_weighted_mean_over_ranks_is_the_mean_over_samples():
    ranks = [planned(samples=7, rank=rank, accumulate=2) for rank in range(2)]
    total, step = [], []
    for pair in zip(*(batches.counted() for batches in ranks), strict=True):
        step += [(batch.weight * batch.inputs.mean() / 4, batch.inputs[: batch.count]) for batch in pair]
        if pair[0].last:
            passes = len(step) // 2
            samples = np.concatenate([own for _, own in step])
            assert sum(mean for mean, _ in step) * 4 / (2 * passes) == pytest.approx(samples.mean())
            total += samples.tolist()
            step = []
    assert sorted(total) == list(range(7))


def test_a_loop_reads_what_the_current_batch_counts_for():
    batches = planned(samples=5, rank=1)
    seen = []
    for batch in batches:
        assert (batches.count, batches.last) == (batch.count, batch.last)
        assert batches.weight == batch.weight == 1.0
        assert LOOP_WEIGHT.now == {2: 1.0, 0: 0.0}[batch.count]
        assert current_batch_counts() is (batch.count > 0)
        seen.append(batch.count)
    assert seen == [2, 0]
    assert current_batch_counts() is True
    assert LOOP_WEIGHT.now == 1.0


def test_the_next_epoch_comes_only_after_a_whole_one():
    batches = planned()
    next(iter(batches))
    assert batches.epoch == 0
    list(batches)
    assert batches.epoch == 1


def test_what_is_dropped_is_counted():
    batches = planned(samples=11, uneven="drop")
    assert (batches.steps, len(batches), batches.samples, batches.dropped) == (2, 2, 8, 3)


def test_a_stream_goes_on_where_the_last_epoch_stopped():
    batches = StreamBatches(((n, -n) for n in range(100)), steps=2, accumulate=3, batch_size=4)
    epochs = [[(batch.inputs, batch.last, batch.number) for batch in batches] for _ in range(2)]
    assert [inputs for inputs, _, _ in epochs[0] + epochs[1]] == list(range(12))
    assert [last for _, last, _ in epochs[0]] == [False, False, True] * 2
    assert [number for _, _, number in epochs[1]] == list(range(6))
    assert (len(batches), batches.steps, batches.samples) == (6, 2, None)
