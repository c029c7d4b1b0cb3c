"""A Keras CNN on handwritten digits by ``compile`` and ``fit``, with the eight steps marked.

hvdkit run -np 2 examples/keras_fit.py
horovodrun -np 2 python examples/keras_fit.py
"""

from __future__ import annotations

from pathlib import Path

import click
import keras
import tensorflow as tf

import hvdkit
import hvdkit.keras as hk


def build_model() -> keras.Model:
    """Return the net: two convolutions and two dense layers, which end in probabilities."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(10, activation="softmax"),
        ]
    )


@click.command()
@click.option("--epochs", default=24, show_default=True)
@click.option("--steps", default=500, show_default=True, help="Steps per epoch of one process; divided among all.")
@click.option("--batch-size", default=128, show_default=True, help="Samples per process and step.")
@click.option("--lr", default=0.001, show_default=True, help="Learning rate of one process.")
@click.option("--warmup-epochs", default=3.0, show_default=True, help="Epochs until the scaled rate is reached.")
@click.option("--data-dir", help="A folder of MNIST-format files; without it, a sample of 5,000 digits.")
@click.option("--checkpoints", default=".", show_default=True, help="Where checkpoint-N.keras go.")
@click.option("--engine", default="auto", show_default=True, help="horovod, mpi, serial or auto.")
def main(
    epochs: int,
    steps: int,
    batch_size: int,
    lr: float,
    warmup_epochs: float,
    data_dir: str | None,
    checkpoints: str,
    engine: str,
) -> None:
    """Train a small CNN on handwritten digits with Keras's fit."""
    # step 1: initialise
    world = hk.init(engine)
    # step 2: one device for each process, and its share of the CPU threads
    hk.pin()

    # step 3: each process takes its own part of the data
    data = hvdkit.datasets.mnist(data_dir, normalise=False)
    samples = tf.data.Dataset.from_tensor_slices(data.train).shuffle(10000, seed=42).repeat()
    steps_per_epoch = steps // world.size
    batches = hk.shard(samples, batch_size, steps_per_epoch=steps_per_epoch)

    # step 4: the learning rate for the larger global batch, reached by a warm-up
    scaled_lr = hk.scale_lr(lr)
    warmup = hk.callbacks.LearningRateWarmupCallback(initial_lr=scaled_lr, warmup_epochs=warmup_epochs, verbose=1)

    # step 5: the optimizer averages gradients over all processes
    model = build_model()
    optimizer = hk.distribute(keras.optimizers.Adam(scaled_lr), model)
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(), optimizer=optimizer, metrics=["accuracy"])

    # step 6: all processes start from the weights of rank 0
    broadcast = hk.callbacks.BroadcastGlobalVariablesCallback(0)
    # step 8: metrics are those of all processes, for every callback that comes after
    average = hk.callbacks.MetricAverageCallback()
    # step 7: checkpoints; rank 0 alone writes them
    checkpoint = keras.callbacks.ModelCheckpoint(str(Path(checkpoints) / "checkpoint-{epoch}.keras"))

    model.fit(
        batches,
        steps_per_epoch=steps_per_epoch,
        epochs=epochs,
        callbacks=[broadcast, average, warmup, checkpoint],
        verbose=2,
    )


if __name__ == "__main__":
    main()
