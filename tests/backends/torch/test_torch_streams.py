"""Streams: each sample once over all ranks, the same number of steps on each, or refused by name."""

from __future__ import annotations

import io
import tarfile

import pytest
from installed import needs
from ranks import on

PAIR = on("torch", engines=("torch",))
SIZES = [*PAIR, *on("torch", engines=("mpi",), sizes=(3,))]


def stream(count, kind, workers=0, batch=4):
    """Return numbers as a stream of some kind."""
    from torch.utils.data import DataLoader, IterableDataset

    def numbers():
        yield from ({"n": n, "ten": n * 10.0} for n in range(count))

    class Numbers(IterableDataset):
        def __iter__(self):
            return numbers()

    class Iterable:
        def __iter__(self):
            return numbers()

    if kind == "loader":
        return DataLoader(Numbers(), batch, num_workers=workers)
    return {"function": numbers, "lambda": lambda: numbers(), "data set": Numbers(), "iterable": Iterable()}[kind]


def taken(data, batch=4, epochs=2, **options):
    """Return what each batch of each epoch holds and counts for."""
    import hvdkit.torch as hk

    batches = hk.shard(data, batch, **options)
    return [
        [(each.inputs["n"].tolist(), each.count, each.weight, each.last) for each in batches.counted()]
        for _ in range(epochs)
    ]


@pytest.mark.parametrize("uneven", ["exact", "pad", "drop"])
@pytest.mark.parametrize("ranks", SIZES, indirect=True)
def test_r32_each_sample_of_a_stream_comes_once_over_all_ranks(ranks, uneven):
    def body():
        found = {}
        for count in (24, 25, 31):
            kinds = ("function", "lambda", "data set", "iterable", "loader") if count == 25 else ("function",)
            for kind in kinds:
                found[count, kind] = taken(stream(count, kind), uneven=uneven)
        found[25, "accumulate"] = taken(stream(25, "function"), uneven=uneven, accumulate=2)
        found[25, "workers"] = taken(stream(25, "loader", workers=2), uneven=uneven)
        return found

    results = ranks.run(body)
    group = 4 * ranks.size
    for (count, kind), epochs in results[0].items():
        assert epochs[0] == epochs[1]
        group = 4 * ranks.size * (2 if kind == "accumulate" else 1)
        own = [found[count, kind][0] for found in results]
        assert len({len(batches) for batches in own}) == 1
        assert len({tuple(last for *_, last in batches) for batches in own}) == 1
        seen = sorted(n for batches in own for numbers, counts, *_ in batches for n in numbers if counts)
        if uneven == "exact":
            assert seen == list(range(count))
        if uneven == "drop":
            assert seen == list(range(count // group * group))
        if uneven == "pad":
            assert set(seen) == set(range(count))
            assert len(seen) == -(-count // ranks.size) * ranks.size
        total, passes = [0.0, 0], 0
        for entries in zip(*own, strict=True):
            passes += 1
            total = [total[0] + sum(weight for _, _, weight, _ in entries), total[1] + sum(c for _, c, _, _ in entries)]
            if entries[0][3]:
                assert total[0] / ranks.size / passes == pytest.approx(1.0)
                total, passes = [0.0, 0], 0


@pytest.mark.parametrize("ranks", PAIR, indirect=True)
def test_r32_a_stream_with_steps_goes_on_where_it_stopped_and_begins_again(ranks):
    def body():
        import hvdkit.torch as hk

        batches = hk.shard(stream(10, "function"), 2, steps_per_epoch=2)
        return len(batches), batches.steps, [n for _ in range(3) for batch in batches for n in batch["n"].tolist()]

    results = ranks.run(body)
    for rank, (length, steps, seen) in enumerate(results):
        assert (length, steps) == (2, 2)
        assert seen == [n % 10 for n in range(rank, 24, 2)]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("ranks", PAIR, indirect=True)
def test_r32_what_a_stream_draws_at_random_is_one_order_on_all_ranks(ranks, workers):
    def body():
        import random

        import numpy as np
        import torch
        from torch.utils.data import DataLoader, IterableDataset, get_worker_info
        from torch_cases import rank

        import hvdkit.torch as hk

        class Shuffled(IterableDataset):
            def __iter__(self):
                numbers = list(range(20))
                random.shuffle(numbers)
                numbers = [numbers[place] for place in np.random.permutation(20)]
                info = get_worker_info()  # a stream that splits itself over workers
                yield from numbers[info.id :: info.num_workers] if info else numbers

        for seed in (torch.manual_seed, np.random.seed, random.seed):
            seed(7 + rank())
        drawn = random.random(), np.random.rand(), float(torch.rand(()))
        for seed in (torch.manual_seed, np.random.seed, random.seed):
            seed(7 + rank())
        batches = hk.shard(DataLoader(Shuffled(), 5, num_workers=workers), 5)
        epochs = [[n for batch in batches for n in batch.tolist()] for _ in range(2)]
        return epochs, (random.random(), np.random.rand()) == drawn[:2]

    (first, untouched), (second, also) = ranks.run(body)
    assert untouched
    assert also
    for one, other in zip(first, second, strict=True):
        assert sorted(one + other) == list(range(20))
    assert first[0] != first[1]


FAULTS = {
    "split": "DataError: data: the stream on rank 1 is not that of rank 0; let every rank read the whole stream",
    "shorter": "DataError: data: the stream goes on to 4 samples on rank 0 but 0 on rank 1",
    "own order": "DataError: data: the stream on rank 1 is not that of rank 0",
    "once": "RecipeError: data of class generator can be read only once; give the function that makes it",
    "used up": "DataError: the stream gives too few samples in epoch 1",
    "empty": "DataError: the stream gives too few samples in epoch 0",
    "set": "RecipeError: a set has another order on every rank",
    "no iterator": "DataError: the function arrays returns no iterator but a tuple",
    "ready batches": "RecipeError: the DataLoader has batch_size None",
    "class": "RecipeError: the class UsedUp itself cannot be sharded",
    "length": "RecipeError: the data are a stream of unknown length; give steps_per_epoch",
    "batch": "RecipeError: shard: batch_size is 0",
    "steps": "RecipeError: shard: limit is 0",
    "noise": "",
}


@pytest.mark.parametrize("ranks", PAIR, indirect=True)
def test_r32_streams_that_differ_between_ranks_or_cannot_be_read_again_are_refused(ranks):
    def body():
        import numpy as np
        from torch.utils.data import DataLoader, IterableDataset
        from torch_cases import complaint, rank

        import hvdkit.torch as hk

        own = rank()

        def split():
            yield from range(own, 40, 2)

        def shorter():
            yield from range(12 - 4 * own)

        def own_order():
            yield from np.random.default_rng().permutation(1000)

        def noise():
            random = np.random.default_rng()
            yield from ((random.random(3), n) for n in range(10))

        def arrays():
            return np.zeros((8, 2)), np.zeros(8)

        class UsedUp(IterableDataset):
            def __init__(self):
                self.numbers = iter(range(8))

            def __iter__(self):
                return self.numbers

        def loop(data, batch=2, **options):
            batches = hk.shard(data, batch, **options)
            for _ in range(2):
                for _batch in batches:
                    pass

        kinds = {
            "split": split,
            "shorter": shorter,
            "own order": own_order,
            "once": split(),
            "used up": UsedUp(),
            "empty": lambda: iter(()),
            "set": {1, 2, 3},
            "no iterator": arrays,
            "ready batches": DataLoader(UsedUp(), batch_size=None),
            "class": UsedUp,
            "noise": noise,
        }
        found = {name: complaint(loop, data) for name, data in kinds.items()}
        found["length"] = complaint(lambda: len(hk.shard(noise, 2)))
        found["batch"] = complaint(loop, noise, 0)
        found["steps"] = complaint(loop, noise, steps_per_epoch=0)
        return found

    first, second = ranks.run(body)
    assert first == second
    assert first.keys() == FAULTS.keys()
    for name, text in FAULTS.items():
        assert first[name].startswith(text), (name, first[name])
        assert bool(first[name]) == bool(text)


@pytest.mark.parametrize("uneven", ["exact", "drop"])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("ranks", PAIR, indirect=True)
def test_r32_a_stream_that_is_split_already_is_taken_as_it_is_when_told(ranks, workers, uneven):
    def body():
        from torch.utils.data import IterableDataset, get_worker_info
        from torch_cases import complaint, rank

        own = rank()

        class Split(IterableDataset):
            def __iter__(self):
                numbers = range(26) if own == 0 else range(26, 37)
                info = get_worker_info()
                yield from ({"n": n} for n in (numbers[info.id :: info.num_workers] if info else numbers))

        class Half(Split):
            def __iter__(self):
                return iter(()) if own else super().__iter__()

        settings = {"already_split": True, "workers": workers, "uneven": uneven}
        found = [taken(Split(), accumulate=steps, **settings) for steps in ((1,) if workers else (1, 2))]
        limited = taken(Split(), steps_per_epoch=5, **settings)
        wrong = complaint(taken, Half(), **settings), complaint(taken, Split(), already_split=True, uneven="pad")
        return found, [len(epoch) for epoch in limited], wrong

    results = ranks.run(body)
    for number, steps in enumerate((1,) if workers else (1, 2)):
        for epoch in range(2):
            own = [found[number][epoch] for found, *_ in results]
            assert len(own[0]) == len(own[1])
            seen = [sorted(n for numbers, count, *_ in batches for n in numbers if count) for batches in own]
            if uneven == "exact":
                assert seen == [list(range(26)), list(range(26, 37))]
            else:
                assert len(seen[0]) == len(seen[1]) == len({*seen[0], *seen[1]}) / 2 == 8
            totals = []
            for (_, count, weight, last), (_, other, also, _) in zip(*own, strict=True):
                totals.append((count, weight, other, also))
                if last:
                    passes, samples = len(totals), sum(a + b for a, _, b, _ in totals)
                    for first, heavy, second, light in totals:
                        assert heavy == pytest.approx(first * 2 * passes / samples)
                        assert light == pytest.approx(second * 2 * passes / samples)
                    assert passes <= steps
                    totals = []
    for _, lengths, (empty, pad) in results:
        assert lengths == [5, 5]
        if uneven == "exact":
            assert empty == "DataError: data: rank 1 has no sample of the stream that is split by rank"
        else:
            assert empty.startswith("DataError: the stream gives too few samples in epoch 0")
        assert pad == "RecipeError: uneven='pad' is not available for a stream that is split already; use exact or drop"


@pytest.mark.parametrize("ranks", PAIR, indirect=True)
def test_r32_a_recipe_trains_on_a_stream_of_pairs(ranks):
    def body():
        import numpy as np
        import torch
        from torch_cases import complaint

        import hvdkit

        def samples():
            draw = np.random.default_rng(0)
            for _ in range(16):
                yield draw.random(2, np.float32), int(draw.integers(3))

        def fitted(**settings):
            recipe = hvdkit.Recipe(
                model=lambda: torch.nn.Linear(2, 3),
                data=hvdkit.Data(samples),
                optimizer=hvdkit.SGD(0.1),
                batch_size=4,
                epochs=2,
                **settings,
            )
            trainer = hvdkit.apply(recipe, "torch")
            trainer.fit()
            return trainer

        whole = list(samples())
        arrays = hvdkit.Data((np.stack([x for x, _ in whole]), np.array([y for _, y in whole])))
        one = fitted(steps_per_epoch=4)
        trainer = hvdkit.apply(one.recipe.replace(data=arrays, shard=hvdkit.Shard(shuffle=False)), "torch")
        trainer.fit()
        pairs = zip(one.weights().values(), trainer.weights().values(), strict=True)
        return all(np.allclose(a, b, atol=1e-6) for a, b in pairs), complaint(fitted)

    for equal, text in ranks.run(body):
        assert equal
        assert text.startswith("RecipeError: the data are a stream of unknown length; give steps_per_epoch")


@needs("datasets")
@pytest.mark.parametrize("ranks", PAIR, indirect=True)
def test_r32_streams_of_hugging_face(ranks):
    def body():
        import datasets
        from datasets.distributed import split_dataset_by_node
        from torch_cases import complaint, rank

        data = datasets.Dataset.from_dict({"n": list(range(22))}).to_iterable_dataset(num_shards=2)
        whole = [n for batch in taken(data, epochs=1)[0] for n in batch[0][: batch[1]]]
        shuffled = taken(data.shuffle(seed=3, buffer_size=5), workers=2)
        own = complaint(taken, split_dataset_by_node(data, rank=rank(), world_size=2))
        return whole, [[n for batch in epoch for n in batch[0][: batch[1]]] for epoch in shuffled], own

    (one, first, text), (two, second, also) = ranks.run(body)
    assert sorted(one + two) == list(range(22))
    assert [sorted(a + b) for a, b in zip(first, second, strict=True)] == [list(range(22))] * 2
    assert first[0] != first[1]
    assert text == also
    assert text.startswith("DataError: data: the stream")


@needs("webdataset")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("ranks", PAIR, indirect=True)
def test_r32_streams_of_webdataset(ranks, tmp_path, workers):
    for part in range(2):
        with tarfile.open(tmp_path / f"{part}.tar", "w") as tar:
            for n in range(part * 11, part * 11 + 11):
                content = str(n).encode()
                entry = tarfile.TarInfo(f"{n:03}.cls")
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))

    def body():
        import webdataset as wds
        from torch_cases import complaint

        import hvdkit.torch as hk

        urls = [str(tmp_path / f"{part}.tar") for part in range(2)]

        def read(split):
            data = wds.WebDataset(urls, nodesplitter=split, shardshuffle=False).decode().to_tuple("cls")
            batches = hk.shard(data, 4, workers=workers)
            return [n for (batch,) in batches for n in batch.tolist()[: batches.count]]

        return read(lambda shards: shards), complaint(read, wds.split_by_node)

    (one, text), (two, also) = ranks.run(body)
    assert sorted(one + two) == list(range(22))
    if workers == 0:  # a worker is in no process group, and splits nothing
        assert text == also
        assert text.startswith("DataError: data: the stream on rank 1 is not that of rank 0")
