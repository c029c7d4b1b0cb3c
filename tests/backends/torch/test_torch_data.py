"""What torch takes as data: arrays, data sets, loaders, workers; and what it refuses."""

from __future__ import annotations

import pytest
from ranks import on

import hvdkit

PAIR = on("torch", engines=("torch",))
ENGINES = on("torch", engines=("torch", "mpi", "horovod"))
THREE = on("torch", engines=("mpi",), sizes=(3,))


def taken(data, batch, epochs=2, **settings):
    """Return the labels of every batch of every epoch, without those that only fill up."""
    import hvdkit.torch as hk

    batches = hk.shard(data, batch, **settings)
    result = []
    for _ in range(epochs):
        result.append([y.tolist() for _, y in batches if batches.count])
    return result, len(batches)


def over_ranks(results, epoch):
    return sorted(label for epochs, _ in results for batch in epochs[epoch] for label in batch)


@pytest.mark.parametrize("kind", ["dataset", "loader", "shuffled_loader"])
@pytest.mark.parametrize("ranks", PAIR, indirect=True)
def test_g02_arrays_datasets_and_loaders_are_sharded_alike(ranks, kind):
    def body():
        import numpy as np
        import torch
        from torch.utils.data import DataLoader, TensorDataset

        x, y = np.zeros((100, 3), np.float32), np.arange(100)
        dataset = TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
        data = {
            "dataset": dataset,
            "loader": DataLoader(dataset, batch_size=10),
            "shuffled_loader": DataLoader(dataset, batch_size=10, shuffle=True),
        }[kind]
        # a loader without shuffle keeps its order
        return taken(data, 10), taken((x, y), 10, shuffle=kind != "loader")

    results = ranks.run(body)
    for mine, arrays in results:
        assert mine == arrays
        assert mine[1] == 5
    mine = [result for result, _ in results]
    assert over_ranks(mine, 0) == over_ranks(mine, 1) == list(range(100))
    assert (mine[0][0][0] == mine[0][0][1]) == (kind == "loader")


@pytest.mark.parametrize("uneven", ["exact", "pad", "drop"])
@pytest.mark.parametrize("ranks", THREE, indirect=True)
def test_ten_samples_over_three_processes(ranks, uneven):
    def body():
        import numpy as np

        return taken((np.zeros((10, 1)), np.arange(10)), 2, epochs=1, uneven=uneven)

    results = ranks.run(body)
    assert len({length for _, length in results}) == 1
    labels = over_ranks(results, 0)
    expected = {"exact": 10, "pad": 12, "drop": 6}[uneven]
    assert len(labels) == expected
    assert len(set(labels)) == min(expected, 10)


@pytest.mark.parametrize("ranks", ENGINES, indirect=True)
def test_g06_worker_processes_give_the_same_batches_and_end(ranks):
    def body():
        import numpy as np
        import torch
        from torch.utils.data import DataLoader, TensorDataset

        x, y = np.zeros((20, 3), np.float32), np.arange(20)
        dataset = TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
        loader = DataLoader(dataset, batch_size=2, shuffle=True, num_workers=1)
        return taken((x, y), 2), taken((x, y), 2, workers=1, prefetch=3), taken(loader, 2)

    for none, one, loaders in ranks.run(body):
        assert none == one == loaders


@pytest.mark.parametrize("ranks", PAIR, indirect=True)
def test_images_come_out_nchw_in_channels_last_strides(ranks):
    def body():
        import numpy as np
        import torch

        import hvdkit.torch as hk

        images = np.arange(8 * 4 * 5 * 3, dtype=np.float32).reshape(8, 4, 5, 3)
        x, y = next(iter(hk.shard((images, np.arange(8, dtype=np.uint8)), 2, shuffle=False)))
        return x, x.is_contiguous(memory_format=torch.channels_last), str(y.dtype), y, images

    for rank, (x, channels_last, kind, y, images) in enumerate(ranks.run(body)):
        assert channels_last
        assert kind == "torch.int64"
        assert y.tolist() == [rank, rank + 2]
        assert (x == images[[rank, rank + 2]].transpose(0, 3, 1, 2)).all()


@pytest.mark.parametrize("ranks", PAIR, indirect=True)
def test_steps_per_epoch_is_counted_for_one_process_and_divided(ranks):
    def body():
        from torch_recipes import run

        trainer = run(steps_per_epoch=6, epochs=2)
        return trainer.steps_per_epoch, trainer.global_step

    assert ranks.run(body) == [(3, 6)] * 2


@pytest.mark.parametrize("ranks", ENGINES, indirect=True)
def test_d01_averages_of_integers_tensors_and_dicts(ranks):
    def body():
        import torch
        from torch_cases import rank

        import hvdkit.torch as hk

        r = rank()
        values = {"int": torch.tensor(r), "float": r + 0.5, "half": torch.tensor(1.0 + r, dtype=torch.float16)}
        gradient = torch.tensor([1.0 + r], requires_grad=True)
        return hk.average(r), hk.average(values), hk.average(torch.tensor([r, 1.0])), hk.average(gradient, 90 - 80 * r)

    for number, values, array, weighted in ranks.run(body):
        assert (number, type(number)) == (0.5, float)
        assert values == {"int": 0.5, "float": 1.0, "half": 1.5}
        assert array.tolist() == [0.5, 1.0]
        assert weighted == pytest.approx(1.1)


REFUSED = {
    "empty": "DataError: the data are empty",
    "too_few": "DataError: 7 samples do not fill one global batch of 8; lower batch_size",
    "lengths": "DataError: 7 samples but 6 labels",
    "no_length": "RecipeError: data of class NoLength cannot be sharded",
    "loader_batch": "RecipeError: the DataLoader has batch_size 2 but 4 is asked for",
    "prefetch": "RecipeError: Shard.prefetch is 3 but workers is 0",
    "batch": "RecipeError: shard: batch_size is 0; it must be a whole number >= 1",
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("ranks", PAIR, indirect=True)
def test_data_that_cannot_be_sharded_are_refused_on_every_rank(ranks, case):
    def body():
        import numpy as np
        from torch.utils.data import DataLoader, Dataset
        from torch_cases import complaint

        import hvdkit.torch as hk

        class NoLength(Dataset):
            def __getitem__(self, place):
                return place

        seven, list_data = np.zeros((7, 2)), list(range(8))
        arguments = {
            "empty": ((seven[:0], seven[:0]), 4, {}),
            "too_few": ((seven, seven), 4, {"uneven": "drop"}),
            "lengths": ((seven, seven[:6]), 4, {}),
            "no_length": (NoLength(), 4, {}),
            "loader_batch": (DataLoader(list_data, batch_size=2), 4, {}),
            "prefetch": ((seven, seven), 4, {"prefetch": 3}),
            "batch": ((seven, seven), 0, {}),
        }
        data, batch, settings = arguments[case]
        return complaint(hk.shard, data, batch, **settings)

    first, second = ranks.run(body)
    assert first == second
    assert first.startswith(REFUSED[case])


@pytest.mark.parametrize("ranks", PAIR, indirect=True)
def test_a_label_out_of_range_is_the_same_error_on_every_rank_before_any_update(ranks):
    def body(index, label):
        import numpy as np
        from torch_cases import complaint, digest, mlp, samples
        from torch_recipes import recipe

        x, y = samples(48)
        y[index] = label
        trainer = hvdkit.apply(recipe(data=hvdkit.Data(train=(x.astype(np.float32), y))), framework="torch")
        before = digest(trainer.model)
        text = complaint(trainer.fit)
        return text, before == digest(trainer.model), str(mlp().__class__.__name__)

    # wherever the label lies, also where only one rank or a late batch would meet it
    for index, label in ((3, 4), (40, 99), (41, -1)):
        (first, untouched, _), (second, *_) = ranks.run(body, index, label)
        assert (
            first
            == second
            == (f"DataError: label {label} is out of range; the model has 4 outputs, which allow labels 0 to 3")
        )
        assert untouched


@pytest.mark.parametrize("ranks", PAIR, indirect=True)
def test_reversed_and_strided_arrays_are_taken_as_they_read(ranks):
    def body():
        import numpy as np

        x, y = np.arange(24, dtype=np.float32).reshape(12, 2), np.arange(12)
        epochs, _ = taken((x[::-1], y[::-1]), 2, epochs=1, shuffle=False)
        strided, _ = taken((x[::2], y[::2]), 2, epochs=1, shuffle=False)
        return epochs[0], strided[0]

    first, second = ranks.run(body)
    assert first == ([[11, 9], [7, 5], [3, 1]], [[0, 4], [8]])
    assert second == ([[10, 8], [6, 4], [2, 0]], [[2, 6], [10]])
