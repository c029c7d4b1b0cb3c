"""Arrays without a loader: the same batches as ever, in host memory or on a device."""

from __future__ import annotations

import pytest
from ranks import on

import hvdkit

ALONE = on("torch", engines=("serial",), sizes=(1,))
PAIR = on("torch", engines=("torch", "mpi"))


@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8", "int16", "uint16", "complex64", "bool"])
@pytest.mark.parametrize("ranks", ALONE, indirect=True)
def test_rows_of_every_type_come_as_they_are_stored(ranks, dtype):
    def body():
        import numpy as np

        import hvdkit.torch as hk

        x = (np.arange(7 * 4 * 5 * 3).reshape(7, 4, 5, 3) % 120).astype(dtype)
        found = [(images.numpy(), labels.tolist()) for images, labels in hk.shard((x, np.arange(7)), 3, seed=2)]
        # images come out NCHW
        return all((images == x[labels].transpose(0, 3, 1, 2)).all() for images, labels in found), len(found)

    assert ranks.run(body) == [(True, 3)]


@pytest.mark.parametrize("ranks", PAIR, indirect=True)
def test_arrays_held_on_a_device_give_the_batches_of_host_memory(ranks):
    def body():
        import torch
        from torch_cases import samples

        from hvdkit.torch.array_data import ArrayDataset
        from hvdkit.torch.array_source import ArraySource
        from hvdkit.torch.sharding import shard

        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        data = samples(30, torch.float32)
        plain = shard(data, 4, seed=3)
        held = shard(data, 4, seed=3)
        held.source = ArraySource(ArrayDataset(data), device, pinned=False)
        pairs = [
            (torch.equal(x, other.cpu()) and torch.equal(y, labels.cpu()), other.device.type)
            for (x, y), (other, labels) in zip(plain, held, strict=True)
        ]
        return pairs, device.type

    for pairs, kind in ranks.run(body):
        assert pairs
        assert all(pair == (True, kind) for pair in pairs)


@pytest.mark.parametrize("ranks", ALONE, indirect=True)
def test_data_on_a_device_that_cannot_be_are_refused_in_one_line(ranks):
    def body():
        from unittest import mock

        import numpy as np
        import torch
        from complaints import complaint
        from torch_recipes import recipe

        import hvdkit.torch as hk

        x, y = np.zeros((4, 2), np.float32), np.arange(4)
        dataset = torch.utils.data.TensorDataset(torch.zeros(4, 2), torch.zeros(4))
        with mock.patch("torch.cuda.is_available", return_value=False):
            said = [complaint(lambda: hk.shard((x, y), 2, on_device=True))]
            asked = hvdkit.Shard(on_device=True)
            said.append(complaint(lambda: hvdkit.apply(recipe(shard=asked), "torch")))
        said += [
            complaint(lambda: hk.shard(dataset, 2, on_device=True)),
            complaint(lambda: hk.shard((x, y), 2, on_device=True, workers=1)),
            complaint(lambda: hk.shard(lambda: iter([(x, y)]), 2, on_device=True)),
        ]
        with (
            mock.patch("torch.cuda.is_available", return_value=True),
            mock.patch("torch.cuda.mem_get_info", return_value=(10, 100)),
            mock.patch("torch.cuda.current_device", return_value=0),
        ):
            from hvdkit.torch.array_data import ArrayDataset
            from hvdkit.torch.array_source import device_for

            dataset = ArrayDataset((x, y))
            said.append(complaint(lambda: device_for(dataset, True)))
            # 32 bytes of images and 32 of labels: too much for a quarter of 255 bytes, and not of 256
            with mock.patch("torch.cuda.mem_get_info", return_value=(255, 1000)):
                small = device_for(dataset, "auto")
            with mock.patch("torch.cuda.mem_get_info", return_value=(256, 1000)):
                return said, small, str(device_for(dataset, "auto"))

    (said, small, large), *_ = ranks.run(body)
    no_gpu, by_recipe, dataset, workers, stream, full = said
    assert by_recipe == no_gpu
    assert "Shard.on_device is True but there is no GPU" in no_gpu
    assert "only arrays without loader workers" in dataset
    assert "only arrays without loader workers" in workers
    assert "the data are a stream" in stream
    assert "64 bytes and 10 are free" in full
    assert (small, large) == (None, "cuda:0")


@pytest.mark.parametrize("ranks", ALONE, indirect=True)
def test_validation_data_are_laid_out_once(ranks):
    def body():
        from unittest import mock

        from torch_recipes import recipe

        trainer = hvdkit.apply(recipe(epochs=3), "torch")
        with mock.patch("hvdkit.torch.shard", wraps=trainer._setup.backend.shard) as shard:
            trainer.fit()
            trainer.evaluate()
        return shard.call_count

    assert ranks.run(body) == [1]
