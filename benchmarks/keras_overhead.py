"""What hvdkit costs Keras's ``fit`` on one process without an engine, per step of a model that does next to nothing.

    python -m benchmarks.keras_overhead

The same ``fit`` with and without hvdkit takes turns in one process; the difference is put beside a real step's time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
import keras
import numpy as np
import tensorflow as tf

import hvdkit.keras as hk
from benchmarks import keras_methods
from benchmarks.timing import interleaved


def no_op_fit(count: int, distributed: bool) -> Callable[[], None]:
    """Return an epoch of ``fit`` over one weight, as plain Keras has it or with hvdkit's optimizer and callbacks."""
    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    optimizer: Any = keras.optimizers.SGD(1e-6)
    callbacks: list[Any] = []
    if distributed:
        hk.distribute(optimizer, model)
        callbacks = [hk.callbacks.BroadcastGlobalVariablesCallback(0), hk.callbacks.MetricAverageCallback()]
    model.compile(optimizer, "mse", jit_compile=False)
    data = tf.data.Dataset.from_tensors((np.ones((1, 1), "float32"), np.zeros((1, 1), "float32"))).repeat(count)
    return lambda: model.fit(data, epochs=1, verbose=0, callbacks=callbacks) and None


@click.command()
@click.option("--steps", "count", default=500, show_default=True, help="Steps in a round.")
@click.option("--rounds", default=9, show_default=True)
@click.option("--batch", default=64, show_default=True, help="Images of the MNIST step.")
def main(count: int, rounds: int, batch: int) -> None:
    """Show microseconds per step, and what hvdkit adds as a part of a real step."""
    hk.init("serial")
    hk.pin(1)
    times = interleaved({"plain": no_op_fit(count, False), "hvdkit": no_op_fit(count, True)}, count, rounds)
    mnist = keras_methods.fit(keras_methods.compiled_model(), batch, 20)
    step = interleaved({"mnist": mnist}, 20, 5)["mnist"]
    added = times["hvdkit"] - times["plain"]
    click.echo(f"fit on one weight: {times['plain']:.1f} us a step, {added:+.1f} us with hvdkit, epoch's end included")
    click.echo(f"MNIST CNN, batch {batch}: {step:.0f} us a step, of which hvdkit's part is {added / step:+.2%}")
    click.echo(f"one thread, TensorFlow {tf.__version__}, Keras {keras.__version__}")


if __name__ == "__main__":
    main()
