"""Ten legitimate recipes for tf, which ``hvdkit verify`` must verify without a false alarm."""

from __future__ import annotations

from typing import Any

import keras_models as nets

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
    """LSTM and GRU with both dropouts, and an embedding, whose gradients are sparse; a passing Nesterov momentum."""
    return Recipe(
        model=nets.recurrent,
        data=nets.texts,
        optimizer=hvdkit.SGD(lr=0.1, momentum=0.9, nesterov=True),
        metrics=("accuracy",),
        batch_size=5,
        distribute=Distribute(clip_norm=0.2),
    )


def transformer() -> Recipe:
    """Attention with its dropout, LayerNormalization, label smoothing, warm-up and a schedule, sparse rows in Adam."""
    return Recipe(
        model=nets.transformer,
        data=nets.one_hot_texts,
        loss=losses().CategoricalCrossentropy(from_logits=True, label_smoothing=0.1),
        optimizer=AdamW(lr=0.005, weight_decay=0.01),
        metrics=("accuracy",),
        batch_size=4,
        schedule=lambda epoch: 1 / (1 + epoch),
        scale_lr=ScaleLR(warmup_epochs=0.5),
    )


def tied() -> Recipe:
    """One matrix in two places; samples that do not fill a batch are dropped."""
    return Recipe(
        model=lambda: nets.tied(built=True),
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
    """Random numbers of TensorFlow's in a layer, which also adds to the loss."""
    return Recipe(
        model=lambda: nets.vae(plain=True),
        data=nets.pixels,
        loss=losses().BinaryCrossentropy(),
        optimizer=Adam(lr=0.01),
        batch_size=4,
    )


def regression() -> Recipe:
    """Inputs in a dict, several passes for each update, metric objects and functions, decay of weights."""

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
    """Several outputs with a target each, in one loss."""

    def loss(targets: Any, outputs: Any) -> Any:
        kinds = losses().sparse_categorical_crossentropy(targets["kind"], outputs["kind"], from_logits=True)
        return kinds + losses().huber(targets["box"], outputs["box"])

    def off(targets: Any, outputs: Any) -> Any:
        return losses().mean_absolute_error(targets["box"], outputs["box"])

    return Recipe(
        model=nets.detector, data=nets.boxes, loss=loss, optimizer=hvdkit.SGD(lr=0.02), metrics=(off,), batch_size=4
    )


def weighted() -> Recipe:
    """Weights of classes, a schedule object, metrics with a state, steps_per_epoch with arrays."""

    def loss(y: Any, outputs: Any) -> Any:
        return losses().binary_crossentropy(y, outputs)[:, None] * (1.0 + 2.0 * y)

    def optimizer() -> Any:
        import keras

        return keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 3, 0.5), momentum=0.9)

    return Recipe(
        model=lambda: nets.dense(1, "sigmoid"),
        data=nets.binary,
        loss=loss,
        optimizer=optimizer,
        metrics=(metrics().BinaryAccuracy(), metrics().AUC(name="auc", num_thresholds=20)),
        batch_size=4,
        steps_per_epoch=6,
        scale_lr=ScaleLR(),
    )


def own_samples() -> Recipe:
    """A ``tf.data.Dataset`` of the user's own samples of unknown number, with noise."""

    def data() -> hvdkit.Data:
        import tensorflow as tf

        def noisy(x: Any, y: Any) -> Any:
            return x + tf.random.normal(tf.shape(x), 0, 0.1), y

        samples = tf.data.Dataset.from_tensor_slices(nets.flat().train).filter(lambda _, y: y >= 0).map(noisy)
        return hvdkit.Data(train=samples, validation=nets.flat().validation)

    return Recipe(
        model=nets.dense,
        data=data,
        optimizer=hvdkit.SGD(lr=0.1),
        metrics=("accuracy",),
        batch_size=4,
        steps_per_epoch=8,
    )
