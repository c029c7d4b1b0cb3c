"""Ten legitimate recipes for keras, which ``hvdkit verify`` must verify without a false alarm."""

from __future__ import annotations

from typing import Any

import keras_models as nets
import numpy as np

import hvdkit
from hvdkit import Adam, AdamW, Broadcast, Distribute, Recipe, ScaleLR, Shard


def losses() -> Any:
    import keras

    return keras.losses


def metrics() -> Any:
    import keras

    return keras.metrics


def convolutions() -> Recipe:
    """BatchNorm, three kinds of dropout, noise and augmentation; the last update has 6 of 8 samples."""
    return Recipe(
        model=nets.convolutions, data=nets.images, optimizer=hvdkit.SGD(lr=0.05), metrics=("accuracy",), batch_size=4
    )


def recurrent() -> Recipe:
    """LSTM and GRU with both dropouts, and an embedding, whose gradients are sparse."""
    return Recipe(model=nets.recurrent, data=nets.texts, optimizer=Adam(lr=0.01), metrics=("accuracy",), batch_size=5)


def transformer() -> Recipe:
    """Attention with its dropout, LayerNormalization, label smoothing, clipping, warm-up and a schedule."""
    return Recipe(
        model=nets.transformer,
        data=nets.one_hot_texts,
        loss=losses().CategoricalCrossentropy(from_logits=True, label_smoothing=0.1),
        optimizer=AdamW(lr=0.005, weight_decay=0.01),
        metrics=("accuracy",),
        batch_size=4,
        schedule=lambda epoch: 1 / (1 + epoch),
        scale_lr=ScaleLR(warmup_epochs=0.5),
        distribute=Distribute(clip_norm=0.5),
    )


def tied() -> Recipe:
    """One matrix in two places, built by its first batch; samples that do not fill a batch are dropped."""
    return Recipe(
        model=nets.tied,
        data=nets.next_words,
        optimizer=Adam(lr=0.01),
        metrics=("accuracy", metrics().SparseTopKCategoricalAccuracy(2, name="top2")),
        batch_size=4,
        shard=Shard(uneven="drop"),
    )


def frozen() -> Recipe:
    """Layers that are not trained, names that repeat, regularisers, samples that are repeated, another root."""
    return Recipe(
        model=nets.frozen,
        data=nets.flat,
        optimizer=hvdkit.SGD(lr=0.05, momentum=0.9),
        metrics=("accuracy",),
        batch_size=4,
        shard=Shard(uneven="pad"),
        broadcast=Broadcast(root=1),
    )


def vae() -> Recipe:
    """Random numbers in a layer, which also adds to the loss."""
    return Recipe(
        model=lambda: nets.vae(plain=not nets.is_keras3()),
        data=nets.pixels,
        loss=losses().BinaryCrossentropy(),
        optimizer=Adam(lr=0.01),
        batch_size=4,
    )


def regression() -> Recipe:
    """Inputs in a dict, several passes for each update, metric objects and functions."""

    def largest(y: Any, outputs: Any) -> Any:
        return (y - outputs) ** 2

    return Recipe(
        model=nets.regression,
        data=nets.tables,
        loss="mean_squared_error",
        optimizer=Adam(lr=0.01, weight_decay=0.01),
        metrics=(metrics().MeanAbsoluteError(), metrics().RootMeanSquaredError(), largest),
        batch_size=3,
        distribute=Distribute(accumulate=2 if nets.is_keras3() else 1),
    )


def detector() -> Recipe:
    """Several outputs with a target and a loss each."""
    return Recipe(
        model=nets.detector,
        data=nets.boxes,
        loss={
            "keras": {
                "kind": losses().SparseCategoricalCrossentropy(from_logits=True),
                "box": losses().Huber(),
            }
        },
        optimizer=hvdkit.SGD(lr=0.02),
        batch_size=4,
    )


def weighted() -> Recipe:
    """Weights of samples and of classes, a schedule object, metrics with a state, steps_per_epoch with arrays."""

    def loss(y: Any, outputs: Any) -> Any:
        weights = 1.0 + 2.0 * y
        return losses().binary_crossentropy(y, outputs)[:, None] * weights

    def data() -> hvdkit.Data:
        def with_weights(pair: Any) -> Any:
            return (*pair, np.linspace(0.5, 1.5, len(pair[0])).astype(np.float32))

        both = nets.binary()
        return hvdkit.Data(with_weights(both.train), with_weights(both.validation))

    def optimizer() -> Any:
        import keras

        return keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 3, 0.5), momentum=0.9)

    return Recipe(
        model=lambda: nets.dense(1, "sigmoid"),
        data=data,
        loss=loss,
        optimizer=optimizer,
        metrics=(metrics().BinaryAccuracy(), metrics().AUC(name="auc", num_thresholds=20)),
        batch_size=4,
        steps_per_epoch=6,
        scale_lr=ScaleLR(),
    )


def own_batches() -> Recipe:
    """A ``PyDataset`` of the user's own, with batches that it augments at random."""
    import keras

    base = keras.utils.PyDataset if nets.is_keras3() else keras.utils.Sequence
    x, y = nets.flat().train

    class Batches(base):
        def __init__(self) -> None:
            if nets.is_keras3():
                super().__init__()

        def __len__(self) -> int:
            return 5

        def __getitem__(self, index: int) -> Any:
            rows = slice(4 * index, 4 * index + 4)
            return x[rows] + np.random.normal(0, 0.1, (4, 6)).astype(np.float32), y[rows]

    return Recipe(
        model=nets.dense,
        data=lambda: hvdkit.Data(train=Batches()),
        optimizer=Adam(lr=0.01),
        batch_size=4,
        metrics=("accuracy",),
    )


def own_samples() -> Recipe:
    """A ``tf.data.Dataset`` of the user's own samples."""

    def data() -> hvdkit.Data:
        import tensorflow as tf

        return hvdkit.Data(train=tf.data.Dataset.from_tensor_slices(nets.flat().train))

    return Recipe(
        model=nets.dense,
        data=data,
        optimizer=hvdkit.SGD(lr=0.1),
        metrics=("accuracy",),
        batch_size=4,
        shard=Shard(uneven="drop"),
    )


def tagger() -> Recipe:
    """A tag for each word, where words that only fill sentences up are masked, so that batches count differently."""
    return Recipe(model=nets.tagger, data=nets.tagged, optimizer=Adam(lr=0.01), batch_size=4)
