"""Trees of arrays, tf.data sets of unknown length, and sets that ranks would read in other orders; tf and Keras."""

from __future__ import annotations

import pytest
from ranks import on

PAIR = on("tf", engines=("mpi", "horovod"))
THREE = on("tf", engines=("mpi",), sizes=(3,))


def shape(tree):
    if isinstance(tree, dict):
        return {key: shape(part) for key, part in tree.items()}
    if hasattr(tree, "shape"):
        return tuple(tree.shape)
    return type(tree).__name__, [shape(part) for part in tree]


@pytest.mark.parametrize("ranks", PAIR, indirect=True)
def test_r33_any_tree_of_arrays_of_one_length_is_data_and_comes_in_its_form(ranks):
    def body():
        import numpy as np
        from complaints import complaint

        import hvdkit.tf as hk

        hk.init()
        x, y = np.arange(20.0).reshape(10, 2), np.arange(10)
        forms = {
            "three": (x, x + 1, y),
            "dict": {"x": x, "y": y},
            "nested": {"in": (x, [x]), "out": {"y": y}},
            "array": y,
            "plain lists": (x.tolist(), x.tolist(), y.tolist()),
        }
        seen = {}
        for name, data in forms.items():
            batches = hk.shard(data, 4)
            labels = []
            for batch in batches:
                last = {"dict": lambda b: b["y"], "nested": lambda b: b["out"]["y"], "array": lambda b: b}.get(name)
                found = last(batch) if last else batch[-1]
                labels += found.numpy().tolist() if batches.count else []
                first = seen.get(name, (shape(batch),))[0]
                seen[name] = first, labels
        wrong = {"three": (x, x[:7], y), "dict": {"a": x, "b": y[:3]}, "samples": [(x, x), (x, x)], "many": [x] * 5}
        return seen, {name: complaint(hk.shard, data, 4) for name, data in wrong.items()}

    results = ranks.run(body)
    forms = {
        "three": ("tuple", [(4, 2), (4, 2), (4,)]),
        "dict": {"x": (4, 2), "y": (4,)},
        "nested": {"in": ("tuple", [(4, 2), ("tuple", [(4, 2)])]), "out": {"y": (4,)}},
        "array": (4,),
        "plain lists": ("tuple", [(4, 2), (4, 2), (4,)]),
    }
    for name, form in forms.items():
        assert results[0][0][name][0] == form
        assert sorted(results[0][0][name][1] + results[1][0][name][1]) == list(range(10)), name
    assert results[0][1] == results[1][1]
    for name, text in {
        "three": "DataError: data[0] has 10 samples but data[1] has 7; give all arrays one length",
        "dict": "DataError: data['a'] has 10 samples but data['b'] has 3",
        "samples": "RecipeError: a list of 2 parts of one form may be arrays of all samples or single samples",
        "many": "RecipeError: a list of 5 parts of one form",
    }.items():
        assert results[0][1][name].startswith(text)


@pytest.mark.parametrize("uneven", ["exact", "pad", "drop"])
@pytest.mark.parametrize("ranks", [*PAIR, *THREE], indirect=True)
def test_r32_data_of_unknown_length_come_whole(ranks, uneven):
    def body():
        import tensorflow as tf

        import hvdkit.tf as hk

        world = hk.init()
        found = {}
        for count in (8 * world.size, 8 * world.size + 1):
            data = tf.data.Dataset.range(2 * count).filter(lambda n: n % 2 == 0).map(lambda n: {"n": n // 2})
            batches = hk.shard(data, 4, uneven=uneven)
            found[count] = [
                [(each.inputs["n"].numpy().tolist(), each.count, each.weight) for each in batches.counted()]
                for _ in range(2)
            ]
        return found

    results = ranks.run(body)
    for count in results[0]:
        for epoch in range(2):
            own = [found[count][epoch] for found in results]
            assert len({len(batches) for batches in own}) == 1
            seen = [n for batches in own for numbers, counted, _ in batches for n in numbers if counted]
            if uneven == "exact":
                assert sorted(seen) == list(range(count))
                assert all(
                    sum(weight for *_, weight in step) == pytest.approx(ranks.size) for step in zip(*own, strict=True)
                )
            if uneven == "pad":
                assert set(seen) == set(range(count))
                assert len(seen) == -(-count // ranks.size) * ranks.size
            if uneven == "drop":
                assert len(set(seen)) == len(seen) == 8 * ranks.size
        if uneven != "drop":
            assert results[0][count][0] != results[0][count][1]


@pytest.mark.parametrize("framework", ["tf", "keras"])
@pytest.mark.parametrize("ranks", PAIR, indirect=True)
def test_r32_endless_data_may_hold_dicts_and_scalars(ranks, framework):
    def body():
        import importlib

        import tensorflow as tf

        hk = importlib.import_module(f"hvdkit.{framework}")
        hk.init()
        numbers = tf.data.Dataset.range(10)
        seen = {}
        for name, data in {"scalars": numbers, "dicts": numbers.map(lambda n: {"n": n})}.items():
            batches = hk.shard(data.repeat(), 2, steps_per_epoch=3, shuffle=False)
            taken = [
                batch["n"] if name == "dicts" else batch
                for batch in (batches if framework == "tf" else batches.take(3))
            ]
            seen[name] = [n for batch in taken for n in batch.numpy().tolist()]
        return seen

    for rank, seen in enumerate(ranks.run(body)):
        assert seen["scalars"] == seen["dicts"] == [n % 10 for n in range(rank, 12, 2)]


SHUFFLED = "the data set is shuffled before the shard without a seed, so shards would overlap"
SEEDS = "the data set is shuffled with another seed on rank 1 than on rank 0, so shards would overlap"
SHARDED = "the data set is sharded by rank already: shard(2, 0) on rank 0 but shard(2, 1) on rank 1; leave shard() out"
BATCHED = "the data set is batched already; give single samples, such as data.unbatch()"
ORDERS = {
    "zip": SHUFFLED,
    "concatenate": SHUFFLED,
    "interleave": SHUFFLED,
    "sample": SHUFFLED,
    "files": SHUFFLED,
    "seed by rank": SEEDS,
    "inner seed by rank": SEEDS,
    "sampled by rank": SEEDS,
    "sharded": SHARDED,
    "inner shard": SHARDED,
    "zipped batches": BATCHED,
    "buckets": BATCHED,
    "any order": "the data set is read with deterministic=False, in another order on every rank",
    "own half": "data: 20 samples on rank 0 but 15 on rank 1",
    "other samples": "data: sample 0 on rank 1 is not that of rank 0",
    "other samples, shuffled": "data: sample 0 on rank 1 is not that of rank 0",
    "other generator": "data: sample 0 on rank 1 is not that of rank 0",
    "images": SEEDS,
    "image batches": BATCHED,
    "unbatched": "",
    "windows": "",
    "one seed": "",
    "a part": "",
    "chosen": "",
    "option": "",
    "augmented": "",
    "oversampled": "",
}


@pytest.mark.parametrize("framework", ["tf", "keras"])
@pytest.mark.parametrize("ranks", PAIR, indirect=True)
def test_r29_orders_that_differ_between_ranks_are_found_in_every_input(ranks, framework, tmp_path):
    for label in ("a", "b"):
        (tmp_path / label).mkdir()
        for n in range(6):
            (tmp_path / label / f"{n}.bmp").write_bytes(_BITMAP)

    def body():
        import importlib

        import keras
        import tensorflow as tf
        from complaints import complaint

        hk = importlib.import_module(f"hvdkit.{framework}")
        rank = hk.init().rank
        tf.random.set_seed(None)
        datasets, data = tf.data.Dataset, tf.data.Dataset.range(20)
        relaxed = tf.data.Options()
        relaxed.deterministic = False

        def images(**settings):
            import numpy as np

            np.random.seed(rank)
            folder = str(tmp_path)
            return keras.utils.image_dataset_from_directory(folder, image_size=(2, 2), **settings)

        def seeds(seed):
            return data.interleave(lambda n: datasets.range(3).shuffle(3, seed=seed), cycle_length=2)

        def numbers():
            yield from range(10 * rank, 10 * rank + 10)

        kinds = {
            "zip": datasets.zip((data, data.shuffle(20))),
            "concatenate": data.concatenate(data.shuffle(10)),
            "interleave": data.interleave(lambda n: datasets.range(3).shuffle(3), cycle_length=2),
            "sample": datasets.sample_from_datasets([data, data], stop_on_empty_dataset=True),
            "files": datasets.list_files(str(tmp_path / "*" / "*")),
            "seed by rank": data.shuffle(20, seed=1 + rank),
            "inner seed by rank": seeds(1 + rank),
            "sampled by rank": datasets.sample_from_datasets([data, data], seed=1 + rank, stop_on_empty_dataset=True),
            "sharded": data.shard(2, rank),
            "inner shard": data.interleave(lambda n: datasets.range(4).shard(2, rank), cycle_length=2),
            "zipped batches": datasets.zip((data.batch(2), data.batch(2))),
            "buckets": data.bucket_by_sequence_length(lambda n: 1, [2], [4, 4]),
            "any order": data.map(lambda n: n + 1, num_parallel_calls=2, deterministic=False),
            "own half": data.take(20 - 5 * rank),
            "other samples": data.map(lambda n: n + rank),
            "other samples, shuffled": data.map(lambda n: n + rank).shuffle(20, seed=1),
            "other generator": datasets.from_generator(numbers, output_signature=tf.TensorSpec((), tf.int64)),
            "images": images().unbatch(),
            "image batches": images(shuffle=False),
            "unbatched": data.batch(4).unbatch(),
            "windows": data.window(3, drop_remainder=True).flat_map(lambda window: window.batch(3)),
            "one seed": seeds(1),
            "a part": data.shard(2, 1),
            "chosen": datasets.sample_from_datasets([data, data], seed=1, stop_on_empty_dataset=True),
            "option": data.map(lambda n: n + 1, num_parallel_calls=2).with_options(relaxed),
            "augmented": data.map(lambda n: (tf.random.uniform((3,)), n)),
            "oversampled": data.concatenate(data.take(2).repeat(3)),
        }
        return {name: complaint(hk.shard, kind, 2, uneven="drop").partition(": ")[2] for name, kind in kinds.items()}

    first, second = ranks.run(body)
    assert first == second
    assert first.keys() == ORDERS.keys()
    for name, text in ORDERS.items():
        assert first[name].startswith(text), (name, first[name])
        assert bool(first[name]) == bool(text), (name, first[name])


# 2 x 2 pixels
_BITMAP = (
    b"BM" + (70).to_bytes(4, "little") + bytes(4) + (54).to_bytes(4, "little") + (40).to_bytes(4, "little")
    + (2).to_bytes(4, "little") * 2 + (1).to_bytes(2, "little") + (24).to_bytes(2, "little") + bytes(4)
    + (16).to_bytes(4, "little") + bytes(16) + bytes(16)
)  # fmt: skip
