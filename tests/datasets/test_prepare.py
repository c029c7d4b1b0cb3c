"""prepare_datasets: what each framework and each of two processes gets."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dataset_files import digits

import hvdkit
from hvdkit.datasets import prepare_datasets
from hvdkit.errors import DataError, RecipeError

SAMPLES, HELD_OUT, BATCH = 30, 20, 4


def needs(module: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(importlib.util.find_spec(module) is None, reason=f"{module} is not installed")


def make_torch_rank(folder: str) -> Callable[[], dict[str, Any]]:
    def rank() -> dict[str, Any]:
        import hvdkit.torch as hk
        from hvdkit.datasets import prepare_datasets

        hk.init()
        prepared = prepare_datasets("mnist", "torch", 4, folder, validation_batch_size=8, seed=3)
        train, validation = prepared.train, prepared.validation
        result: dict[str, Any] = {"epochs": [], "length": len(train.sampler), "steps": len(train.loader)}
        for epoch in (0, 1):
            train.sampler.set_epoch(epoch)
            indices = list(train.sampler)
            batches = [(x.clone(), y.tolist()) for x, y in train.loader]
            result["epochs"].append((indices, [label for _, labels in batches for label in labels]))
            result["shape"] = tuple(batches[0][0].shape)
        result["channels_last"] = batches[0][0].stride()[1] == 1
        result["image"] = train.data[indices[0]][0].numpy()
        result["same"] = bool((train.data[indices[0]][0] == batches[0][0][0]).all())
        result["held_out"] = list(validation.sampler)
        return result

    return rank


@pytest.mark.torch
@needs("torch")
def test_torch_gets_data_sampler_and_loader_for_each_of_two_processes(write_mnist: Callable[..., Path]) -> None:
    ranks = hvdkit.run(make_torch_rank(str(write_mnist())), np=2, engine="torch", verbose=False)
    images, labels = digits(SAMPLES)
    for epoch in (0, 1):
        shares = [rank["epochs"][epoch][0] for rank in ranks]
        assert sorted(shares[0] + shares[1]) == list(range(SAMPLES))
        for indices, taken in (rank["epochs"][epoch] for rank in ranks):
            assert taken == labels[indices].tolist()
    first = ranks[0]
    assert first["epochs"][0][0] != first["epochs"][1][0]
    assert first["length"] == SAMPLES // 2
    assert first["steps"] == 4  # 30 samples, 2 processes x batch 4
    assert first["shape"] == (BATCH, 1, 28, 28)
    assert first["channels_last"]
    assert first["same"]
    expected = (images[first["epochs"][1][0][0]] / 255 - 0.1307) / 0.3081
    np.testing.assert_allclose(first["image"][0], expected, rtol=0, atol=1e-5)
    assert [rank["held_out"] for rank in ranks] == [list(range(0, HELD_OUT, 2)), list(range(1, HELD_OUT, 2))]


def test_unknown_names_are_refused() -> None:
    with pytest.raises(DataError, match="no data set 'svhn' to prepare; there are mnist, fashion_mnist, cifar10"):
        prepare_datasets("svhn", "torch", 4)
    with pytest.raises(RecipeError, match="framework 'mxnet' is unknown; use one of torch, tf, keras"):
        prepare_datasets("mnist", "mxnet", 4)
