"""What of a recipe a run cannot go on without."""

from __future__ import annotations

import hvdkit
from hvdkit.recipe.fingerprint import differences, fingerprint


def recipe(**changes):
    fields = {"model": len, "data": len, "optimizer": hvdkit.SGD(0.1), "batch_size": 8, **changes}
    return hvdkit.Recipe(**fields)


def changed(**changes):
    return differences(fingerprint(recipe(), "torch"), fingerprint(recipe(**changes), "torch"))


def test_how_long_where_and_in_which_parts_training_runs_may_change():
    assert not changed(epochs=9, batch_size=2, model=max, data=max, init=hvdkit.Init("mpi"), metrics=("accuracy",))
    assert not changed(shard=hvdkit.Shard(workers=3, prefetch=4), distribute=hvdkit.Distribute(accumulate=4))


def test_what_decides_the_numbers_is_named_with_both_values():
    assert changed(seed=3, optimizer=hvdkit.SGD(0.2)) == ["optimizer.lr 0.1 (now 0.2)", "seed 0 (now 3)"]
    assert changed(optimizer={"torch": hvdkit.Adam(0.1)})[0] == "optimizer SGD (now Adam)"
    assert changed(distribute=hvdkit.Distribute("fp16")) == ["distribute.compression 'none' (now 'fp16')"]
    assert changed(schedule=abs) == ["schedule None (now abs)"]
    assert changed(scale_lr=None)[0] == "scale_lr ScaleLR (now None)"
