"""tf.data sets of the user's: sharded before all else, with the same number of steps everywhere, or refused."""

from __future__ import annotations

import pytest
from ranks import on

MPI = on("tf", engines=("mpi",))
SIZES = on("tf", engines=("mpi",), sizes=(2, 3))


def taken(framework, count, epochs=1, batch=2, **options):
    """Return the samples of every batch of a shard of 0 .. count - 1, and its length; runs on every rank."""
    import importlib

    import tensorflow as tf

    hk = importlib.import_module(f"hvdkit.{framework}")
    hk.init()
    data = tf.data.Dataset.range(count).map(lambda number: (number, number * 10))
    batches = hk.shard(data, batch, **options)
    seen = []
    for epoch in range(epochs):
        batches.set_epoch(epoch)
        found = []
        for entries in batches.counted() if framework == "tf" else batches:
            assert (entries[1] == entries[0] * 10).numpy().all()
            found.append((entries[0].numpy().tolist(), getattr(entries, "weight", None)))
        seen.append(found)
    return seen, len(batches), hk.steps(batches)


@pytest.mark.parametrize("ranks", SIZES, indirect=True)
@pytest.mark.parametrize("count", [10, 12, 13])
@pytest.mark.parametrize("uneven", ["exact", "drop", "pad"])
def test_c01_every_rank_makes_the_same_steps_over_disjoint_shards(ranks, count, uneven):
    results = ranks.run(taken, "tf", count, uneven=uneven, epochs=2)
    size, group = ranks.size, 2 * ranks.size
    steps = count // group if uneven == "drop" else -(-count // group)
    assert all((length, updates) == (steps, steps) for _, length, updates in results)
    for epoch in (0, 1):
        assert all(len(seen[epoch]) == steps for seen, _, _ in results)
        counted = [n for seen, _, _ in results for batch, weight in seen[epoch] for n in batch if weight]
        if uneven == "exact":
            assert sorted(counted) == list(range(count))
        if uneven == "drop":
            assert len(set(counted)) == len(counted) == steps * group
        if uneven == "pad":
            assert set(counted) == set(range(count))
            assert len(counted) == -(-count // size) * size
        for step in range(steps):
            total = sum(len(seen[epoch][step][0]) for seen, _, _ in results if seen[epoch][step][1])
            for seen, _, _ in results:
                batch, weight = seen[epoch][step]
                assert weight in (0.0, pytest.approx(len(batch) * size / total))


@pytest.mark.parametrize("ranks", MPI, indirect=True)
def test_shards_are_shuffled_anew_every_epoch_and_alike_in_every_run(ranks):
    results = ranks.run(taken, "tf", 40, epochs=2, seed=3)
    again = ranks.run(taken, "tf", 40, epochs=2, seed=3)
    other = ranks.run(taken, "tf", 40, epochs=2, seed=4)
    still = ranks.run(taken, "tf", 40, epochs=2, shuffle=False)
    assert results == again
    assert results != other
    assert results[0][0][0] != results[0][0][1]
    assert still[0][0][0] == still[0][0][1]
    assert [n for batch, _ in still[1][0][0] for n in batch] == list(range(1, 40, 2))


@pytest.mark.parametrize("ranks", MPI, indirect=True)
def test_endless_data_want_steps_and_go_on_where_the_last_epoch_stopped(ranks):
    def body():
        import tensorflow as tf

        import hvdkit.tf as hk
        from hvdkit.errors import RecipeError

        hk.init()

        def numbers():
            n = 0
            while True:
                yield n, n
                n += 1

        data = tf.data.Dataset.from_generator(numbers, output_signature=(tf.TensorSpec((), tf.int64),) * 2)
        try:
            hk.shard(data.repeat(), 2)
        except RecipeError as error:
            message = str(error)
        batches = hk.shard(data, 2, steps_per_epoch=3, shuffle=False)
        return message, len(batches), [x.numpy().tolist() for _ in range(2) for x, _ in batches]

    expected = "the data set is endless; give Recipe(steps_per_epoch=...)"
    for rank, (message, length, seen) in enumerate(ranks.run(body)):
        assert message == expected
        assert length == 3
        assert [n for batch in seen for n in batch] == list(range(rank, 24, 2))


@pytest.mark.parametrize("ranks", MPI, indirect=True)
@pytest.mark.parametrize("framework", ["tf", "keras"])
def test_data_whose_shards_would_overlap_are_refused(ranks, framework):
    def body():
        import importlib

        import numpy as np
        import tensorflow as tf

        from hvdkit.errors import HvdkitError

        hk = importlib.import_module(f"hvdkit.{framework}")
        hk.init()
        tf.random.set_seed(None)  # with a seed for all of TensorFlow, shuffles would have one too
        data = tf.data.Dataset.range(20).map(lambda n: (n, n))
        kinds = {
            "batched": data.batch(2),
            "batched and cached": data.batch(2).cache().prefetch(1),
            "shuffled": data.shuffle(20),
            "shuffled and mapped": data.shuffle(20).map(lambda x, y: (x, y)),
            "repeated": data.repeat(2),
            "endless": data.repeat(),
            "empty": data.take(0),
            "workers": (data, {"workers": 2}),
            "pinned": (data, {"pin_memory": True}),
            "steps": (data, {"steps_per_epoch": 9}),
            "pair": [1, 2],
            "lengths": (np.zeros((3, 2)), np.zeros(2)),
        }
        found = {}
        for name, kind in kinds.items():
            source, options = kind if isinstance(kind, tuple) and isinstance(kind[1], dict) else (kind, {})
            try:
                hk.shard(source, 2, **options)
            except HvdkitError as error:
                found[name] = str(error)
        hk.shard(data.shuffle(20, seed=1, reshuffle_each_iteration=False), 2)
        return found

    batched = (
        "the data set is batched already; give single samples, such as data.unbatch(): hvdkit shards and batches them"
    )
    shuffled = (
        "the data set is shuffled before the shard without a seed, so shards would overlap; leave shuffle() out "
        "(hvdkit shuffles after the shard) or give it a seed"
    )
    for found in ranks.run(body):
        assert found == {
            "batched": batched,
            "batched and cached": batched,
            "shuffled": shuffled,
            "shuffled and mapped": shuffled,
            "repeated": "the data set repeats before the shard; leave repeat() out and give more epochs",
            "endless": "the data set is endless; give Recipe(steps_per_epoch=...)",
            "empty": "the training data are empty; give at least one sample",
            "workers": "Shard.workers is 2, but tf.data has its own threads; leave it at 0",
            "pinned": "Shard.pin_memory is True, but tf.data places batches itself; use 'auto'",
            "steps": "9 steps per epoch and process are asked for, but 20 samples make only 5; lower steps_per_epoch "
            "or repeat the data",
            "pair": "data of class list cannot be sharded; give arrays (x, y) or a tf.data.Dataset",
            "lengths": "3 samples but 2 labels; give one label per sample",
        }


@pytest.mark.parametrize("ranks", MPI, indirect=True)
def test_a_seeded_shuffle_before_the_shard_gives_disjoint_shards_every_epoch(ranks):
    def body():
        import tensorflow as tf

        import hvdkit.tf as hk

        hk.init()
        data = tf.data.Dataset.range(20).map(lambda n: (n, n)).shuffle(20, seed=7)
        batches = hk.shard(data, 5, shuffle=False)
        return [[n for x, _ in batches for n in x.numpy().tolist()] for _ in range(3)]

    first, second = ranks.run(body)
    assert all(sorted(a + b) == list(range(20)) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("ranks", MPI, indirect=True)
def test_warmup_is_a_stock_schedule_with_round_epoch_ends(ranks):
    def body():
        import keras

        import hvdkit.tf as hk

        hk.init()
        schedule = hk.warmup(0.08, base=0.01, steps_per_epoch=14, epochs=3)
        return type(schedule) is keras.optimizers.schedules.PolynomialDecay, [float(schedule(s)) for s in range(60)]

    for stock, rates in ranks.run(body):
        assert stock
        # the last update of each of the three epochs of warm-up, and then the target
        assert [rates[i] for i in (13, 27, 41)] == pytest.approx([0.1 / 3, 0.17 / 3, 0.08], rel=1e-6)
        assert rates[0] == pytest.approx(0.01 + 0.07 / 42, rel=1e-6)
        assert rates[42:] == pytest.approx([0.08] * 18, rel=1e-6)
