"""What ``benchmarks.keras`` compares: ways to train one Keras model on TensorFlow with several processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import hvdkit.keras as hk
from hvdkit.keras_common.models import build_model

Run = Callable[[], None]
Average = Callable[[list[Any]], list[Any]]


def loss_of() -> Any:
    """Return the loss of all methods."""
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def optimizer_of() -> Any:
    """Return the optimizer of all methods."""
    return keras.optimizers.SGD(0.01, momentum=0.9)


def batches(batch: int, steps: int) -> tf.data.Dataset:
    """Return the same synthetic batch again and again."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(batch, 28, 28, 1)).astype("float32")
    return tf.data.Dataset.from_tensors((x, generator.integers(0, 10, batch))).cache().repeat(steps)


def compiled_model(distribute: Callable[[Any, Any], Any] = lambda optimizer, _model: optimizer) -> Any:
    """Return the model, compiled with its optimizer, which ``distribute`` gets first."""
    model = build_model("mnist_cnn", 0)
    model.compile(distribute(optimizer_of(), model), loss_of(), jit_compile=False)
    return model


def fit(model: Any, batch: int, steps: int) -> Run:
    """Return an epoch of ``fit``."""
    data = batches(batch, steps)
    return lambda: model.fit(data, epochs=1, shuffle=False, verbose=0) and None


def hvdkit_model() -> Any:
    """Return a model whose optimizer hvdkit distributes."""
    return compiled_model(hk.distribute)


def horovod_model() -> Any:
    """Return a model with stock Horovod's optimizer; for Keras 2 alone, since on Keras 3 it averages nothing."""
    import horovod.tensorflow.keras as hvd

    return compiled_model(lambda optimizer, _model: hvd.DistributedOptimizer(optimizer))


def tape_loop(average: Average, batch: int, steps: int) -> Run:
    """Return the loop that one would write by hand: a tape, the average of its gradients, ``apply_gradients``."""
    model, optimizer = build_model("mnist_cnn", 0), optimizer_of()
    loss, data, variables = loss_of(), batches(batch, steps), model.trainable_variables

    @tf.function
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            value = loss(y, model(x, training=True))
        reduced = average(tape.gradient(value, variables))
        optimizer.apply_gradients(zip(reduced, variables, strict=True))
        return value

    def epoch() -> None:
        for x, y in data:
            step(x, y)

    return epoch


def horovod_grouped(gradients: list[Any]) -> list[Any]:
    """Average by stock Horovod's own grouped collective."""
    import horovod.tensorflow as hvd

    return hvd.grouped_allreduce(gradients, op=hvd.Average)


def flat_average(engine: str) -> Average:
    """Return what averages all gradients in one flat reduction without hvdkit."""
    average = _horovod_flat if engine == "horovod" else _mpi_flat()

    def averaged(gradients: list[Any]) -> list[Any]:
        flat = average(tf.concat([tf.reshape(gradient, [-1]) for gradient in gradients], 0))
        pieces = tf.split(flat, [gradient.shape.num_elements() for gradient in gradients])
        return [tf.reshape(piece, like.shape) for piece, like in zip(pieces, gradients, strict=True)]

    return averaged


def _horovod_flat(flat: Any) -> Any:
    import horovod.tensorflow as hvd

    return hvd.allreduce(flat, op=hvd.Average)


def _mpi_flat() -> Callable[[Any], Any]:
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
