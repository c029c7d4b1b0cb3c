"""prepare_datasets: what each framework and each of two processes gets."""

from __future__ import annotations

import numpy as np
import pytest
from dataset_files import digits
from ranks import on

from hvdkit.datasets import prepare_datasets
from hvdkit.errors import DataError, RecipeError

SAMPLES, HELD_OUT = 30, 20


@pytest.mark.parametrize("ranks", on("torch", engines=("serial", "torch"), sizes=(1, 2)), indirect=True)
def test_torch_gets_data_sampler_and_loader(ranks, write_mnist):
    def body(folder):
        from hvdkit.datasets import prepare_datasets

        prepared = prepare_datasets("mnist", "torch", 4, folder, validation_batch_size=8, seed=3)
        train = prepared.train
        epochs = []
        for epoch in (0, 1):
            train.sampler.set_epoch(epoch)
            indices = list(train.sampler)
            batches = [(x.clone(), y.tolist()) for x, y in train.loader]
            epochs.append((indices, [label for _, labels in batches for label in labels]))
        image = train.data[indices[0]][0]
        first = batches[0][0]
        return {
            "epochs": epochs,
            "counts": (len(train.sampler), len(train.loader), len(prepared.validation.loader)),
            "shape": tuple(first.shape),
            "channels_last": first.stride()[1] == 1,
            "same": bool((image == first[0]).all()),
            "image": image,
            "held_out": list(prepared.validation.sampler),
        }

    results = ranks.run(body, str(write_mnist()))
    size = ranks.size
    images, labels = digits(SAMPLES)
    for epoch in (0, 1):
        taken = [index for result in results for index in result["epochs"][epoch][0]]
        assert sorted(taken) == list(range(SAMPLES))
        for indices, seen in (result["epochs"][epoch] for result in results):
            assert seen == labels[indices].tolist()
    first = results[0]
    assert first["epochs"][0][0] != first["epochs"][1][0]
    # 30 samples in global batches of 4 and 8; 20 in those of 8 and 16
    assert first["counts"] == {1: (30, 8, 3), 2: (15, 4, 2)}[size]
    assert first["shape"] == (4, 1, 28, 28)
    assert first["channels_last"]
    assert first["same"]
    expected = (images[first["epochs"][1][0][0]] / 255 - 0.1307) / 0.3081
    np.testing.assert_allclose(first["image"][0], expected, rtol=0, atol=1e-5)
    assert [result["held_out"] for result in results] == [list(range(rank, HELD_OUT, size)) for rank in range(size)]


@pytest.mark.parametrize("ranks", on("tf", engines=("serial", "mpi"), sizes=(1, 2)), indirect=True)
def test_tf_gets_a_tf_data_set_and_its_share_of_batches(ranks, write_mnist):
    def body(folder):
        import tensorflow as tf

        from hvdkit.datasets import prepare_datasets

        prepared = prepare_datasets("fashion_mnist", "tf", 4, folder, seed=3)
        train = prepared.train
        assert isinstance(train.data, tf.data.Dataset)
        assert train.sampler is None
        everything = [label for _, label in train.data.as_numpy_iterator()]
        images = {image.tobytes(): index for index, (image, _) in enumerate(train.data.as_numpy_iterator())}
        taken = [images[x.numpy().tobytes()] for batch, _ in train.loader for x in batch]
        held_out = [int(label) for _, labels in prepared.validation.loader for label in labels]
        return everything, taken, held_out, len(train.loader)

    results = ranks.run(body, str(write_mnist()))
    labels = digits(SAMPLES)[1].tolist()
    assert [everything for everything, *_ in results] == [labels] * ranks.size
    assert sorted(index for _, taken, *_ in results for index in taken) == list(range(SAMPLES))
    assert sorted(label for _, _, held_out, _ in results for label in held_out) == sorted(labels[:HELD_OUT])
    assert [steps for *_, steps in results] == {1: [8], 2: [4, 4]}[ranks.size]


ON_KERAS = [*on("keras", ("serial", "mpi"), sizes=(1, 2)), *on("keras", ("mpi",), env={"KERAS_BACKEND": "jax"})]


@pytest.mark.parametrize("ranks", ON_KERAS, indirect=True)
def test_keras_gets_arrays_and_batches_that_fit_takes(ranks, write_mnist):
    def body(folder):
        import keras
        import numpy as np

        from hvdkit.datasets import prepare_datasets

        prepared = prepare_datasets("mnist", "keras", 5, folder, seed=3)
        train, validation = prepared.train, prepared.validation
        images = {image.tobytes(): index for index, image in enumerate(train.data[0])}
        taken = [images[np.asarray(x).tobytes()] for batch in train.loader for x in batch[0]]
        held_out = [int(label) for batch in validation.loader for label in batch[1]]
        model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(10)])
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        history = model.fit(train.loader, validation_data=validation.loader, shuffle=False, verbose=0).history
        return train.data[1], taken, held_out, len(train.loader), sorted(history)

    results = ranks.run(body, str(write_mnist()))
    labels = digits(SAMPLES)[1].tolist()
    assert [result[0].tolist() for result in results] == [labels] * ranks.size
    assert sorted(index for result in results for index in result[1]) == list(range(SAMPLES))
    assert sorted(label for result in results for label in result[2]) == sorted(labels[:HELD_OUT])
    assert [result[3] for result in results] == {1: [6], 2: [3, 3]}[ranks.size]
    assert [result[4] for result in results] == [["loss", "val_loss"]] * ranks.size


def test_unknown_names_are_refused():
    with pytest.raises(DataError, match="no data set 'svhn' to prepare; there are mnist, fashion_mnist, cifar10"):
        prepare_datasets("svhn", "torch", 4)
    with pytest.raises(RecipeError, match="framework 'mxnet' is unknown; use one of torch, tf, keras"):
        prepare_datasets("mnist", "mxnet", 4)
