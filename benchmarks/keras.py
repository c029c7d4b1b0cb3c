"""Keras on TensorFlow: hvdkit's ``fit`` beside a hand-written loop on the same engine, and beside one process alone.

Started by any launcher; all methods take turns in the same processes, so that their ratios are of one run:

    hvdkit run -np 2 --engine mpi -m benchmarks.keras --batch 64
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import click
import keras
import numpy as np
import tensorflow as tf

import hvdkit.keras as hk
from hvdkit.keras_objects.models import build_model

Run = Callable[[], None]


def loss_of() -> Any:
    """Return the loss of all methods."""
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def batches(batch: int, steps: int) -> tf.data.Dataset:
    """Return the same synthetic batch again and again."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(batch, 28, 28, 1)).astype("float32")
    return tf.data.Dataset.from_tensors((x, generator.integers(0, 10, batch))).cache().repeat(steps)


def fit(distributed: bool, batch: int, steps: int) -> Run:
    """Return an epoch of ``fit``, with hvdkit or without."""
    model, optimizer = build_model("mnist_cnn", 0), keras.optimizers.SGD(0.01, momentum=0.9)
    if distributed:
        hk.distribute(optimizer, model)
    model.compile(optimizer, loss_of(), jit_compile=False)
    data = batches(batch, steps)
    return lambda: model.fit(data, epochs=1, shuffle=False, verbose=0) and None


def tape_loop(engine: str, batch: int, steps: int) -> Run:
    """Return the loop that one would write by hand: a tape, one flat reduction, ``apply_gradients``."""
    model, optimizer = build_model("mnist_cnn", 0), keras.optimizers.SGD(0.01, momentum=0.9)
    average, loss, data = averager(engine), loss_of(), batches(batch, steps)
    variables = model.trainable_variables

    @tf.function
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            value = loss(y, model(x, training=True))
        gradients = tape.gradient(value, variables)
        flat = average(tf.concat([tf.reshape(gradient, [-1]) for gradient in gradients], 0))
        pieces = tf.split(flat, [variable.shape.num_elements() for variable in gradients])
        reduced = [tf.reshape(piece, like.shape) for piece, like in zip(pieces, gradients, strict=True)]
        optimizer.apply_gradients(zip(reduced, variables, strict=True))
        return value

    def epoch() -> None:
        for x, y in data:
            step(x, y)

    return epoch


def averager(engine: str) -> Callable[[Any], Any]:
    """Return what averages a flat tensor over all ranks without hvdkit."""
    if engine == "horovod":
        import horovod.tensorflow as hvd

        return lambda flat: hvd.allreduce(flat, op=hvd.Average)
    from mpi4py import MPI

    communicator = MPI.COMM_WORLD.Dup()

    def on_host(flat: Any) -> Any:
        total = np.empty_like(flat)
        communicator.Allreduce(np.ascontiguousarray(flat), total, MPI.SUM)
        return total / np.float32(communicator.size)

    def average(flat: Any) -> Any:
        result = tf.numpy_function(on_host, [flat], tf.float32)
        result.set_shape(flat.shape)
        return result

    return average


def measure(world: Any, runs: dict[str, tuple[Run, bool]], batch: int, steps: int, rounds: int) -> dict[str, float]:
    """Return the median samples per second over all ranks of each method; the first round is left out."""
    rates: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds + 1):
        for name, (run, alone) in runs.items():
            world.barrier()
            began = time.perf_counter()
            if world.is_root or not alone:
                run()
            spent = float(world.allreduce(time.perf_counter() - began, "max"))
            if number:
                rates[name].append(batch * steps * (1 if alone else world.size) / spent)
    return {name: statistics.median(values) for name, values in rates.items()}


@click.command()
@click.option("--batch", default=64, show_default=True, help="Images per process and step.")
@click.option("--steps", default=40, show_default=True, help="Steps in a round.")
@click.option("--rounds", default=7, show_default=True)
@click.option("--engine", default="auto", show_default=True)
@click.option("--json", "path", help="Write the figures to this file.")
def main(batch: int, steps: int, rounds: int, engine: str, path: str | None) -> None:
    """Show samples per second of each method, and the ratios."""
    world = hk.init(engine)
    hk.pin(1)
    runs = {
        "one process": (fit(False, batch, steps), True),
        "tape loop": (tape_loop(world.engine.name, batch, steps), False),
        "hvdkit fit": (fit(True, batch, steps), False),
    }
    rates = measure(world, runs, batch, steps, rounds)
    if not world.is_root:
        return
    for name, rate in rates.items():
        click.echo(f"{name:12}{rate:10.0f} samples/s, {rates['hvdkit fit'] / rate:.2f} of it by hvdkit's fit")
    click.echo(
        f"{world.size} processes, engine {world.engine.name}, TensorFlow {tf.__version__}, Keras {keras.__version__}"
    )
    if path:
        with open(path, "w") as file:
            json.dump({"samples_per_second": rates, "size": world.size, "engine": world.engine.name}, file, indent=1)


if __name__ == "__main__":
    main()
