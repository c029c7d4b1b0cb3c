"""A CNN on handwritten digits by a custom training step in TensorFlow, with the eight steps marked.

hvdkit run -np 2 examples/tf_custom_loop.py
horovodrun -np 2 python examples/tf_custom_loop.py
"""

from __future__ import annotations

from typing import Any

import click
import tensorflow as tf

import hvdkit
import hvdkit.tf as hk


def build_model() -> Any:
    """Return the net: two convolutions and two dense layers, which end in probabilities."""
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            tf.keras.Input((28, 28, 1)),
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
@click.option("--steps", default=10000, show_default=True, help="Steps of one process; divided among all.")
@click.option("--batch-size", default=128, show_default=True, help="Samples per process and step.")
@click.option("--lr", default=0.001, show_default=True, help="Learning rate of one process.")
@click.option("--data-dir", help="A folder of MNIST-format files; without it, a sample of 5,000 digits.")
@click.option("--checkpoint", default="checkpoint.npz", show_default=True, help="The file that rank 0 writes.")
@click.option("--engine", default="auto", show_default=True, help="horovod, mpi, serial or auto.")
def main(steps: int, batch_size: int, lr: float, data_dir: str | None, checkpoint: str, engine: str) -> None:
    """Train a small CNN on handwritten digits with a custom loop."""
    # step 1: initialise
    world = hk.init(engine)
    # step 2: one device for each process, and its share of the CPU threads
    hk.pin()

    # step 3: each process takes its own part of the data
    data = hvdkit.datasets.mnist(data_dir, normalise=False)
    samples = tf.data.Dataset.from_tensor_slices(data.train).shuffle(10000, seed=42).repeat()
    batches = hk.shard(samples, batch_size, steps_per_epoch=steps // world.size)

    # step 4: the learning rate for the larger global batch
    model = build_model()
    optimizer = tf.keras.optimizers.Adam(hk.scale_lr(lr))
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy()

    @tf.function
    def training_step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        # step 5: the tape averages gradients over all processes
        gradients = hk.distribute(tape).gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    # step 6: all processes start from the variables of rank 0, the optimizer's too
    hk.broadcast(model, optimizer)

    for step, (images, labels) in enumerate(batches):
        loss = training_step(images, labels)
        if step % 10 == 0:
            # step 8: the loss over all processes; all of them take part, rank 0 tells
            mean = hk.average(loss)
            if world.is_root:
                print(f"Step #{step}\tLoss: {mean:.6f}", flush=True)

    # step 7: rank 0 writes a checkpoint; all processes take part
    hk.save(checkpoint, model, optimizer, step=steps // world.size)


if __name__ == "__main__":
    main()
