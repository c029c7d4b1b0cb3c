"""What it costs, in TensorFlow and Keras, to look whether weights are the same on all processes.

    hvdkit run -np 2 -m benchmarks.keras_guards

The same steps of a ``tf.function`` with the guard and without take turns in one job. One look at the weights, which a
loop takes as ``fit`` does, is timed by itself, since its share is less than what two runs of the steps differ by.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import click
import numpy as np
import tensorflow as tf

import hvdkit.tf as hk
from benchmarks.keras_methods import Run, loss_of, optimizer_of
from benchmarks.timing import interleaved
from hvdkit.job.world import World
from hvdkit.keras_common.compat import name_of, to_numpy
from hvdkit.keras_common.models import build_model
from hvdkit.training.drift import EVERY, DriftGuard, sum_of_bits


def loop(world: World, batch: int, guarded: bool) -> tuple[Any, Run]:
    """Return a model, and what trains it for as many steps as stand between two looks."""
    world.guard = guarded
    generator = np.random.default_rng(world.rank)
    x = tf.constant(generator.normal(size=(batch, 28, 28, 1)), tf.float32)
    y = tf.constant(generator.integers(0, 10, batch))
    model, loss = build_model("mnist_cnn", 0), loss_of()
    optimizer = hk.distribute(optimizer_of())
    hk.broadcast(model, optimizer)

    @tf.function
    def step() -> None:
        with tf.GradientTape() as tape:
            value = loss(y, model(x, training=True))
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(value, variables), variables, strict=True))

    def train() -> None:
        world.guard = guarded
        for _ in range(EVERY):
            step()

    return model, train


def one_look(world: World, model: Any) -> float:
    """Return the microseconds of one comparison of all weights."""
    guard = DriftGuard(world, "this is a benchmark")
    began = time.perf_counter()
    weights = model.trainable_variables
    guard.look([name_of(weight) for weight in weights], [sum_of_bits(to_numpy(weight)) for weight in weights], [])
    return (time.perf_counter() - began) * 1e6


@click.command()
@click.option("--batch", default=64, show_default=True, help="Images of a step on each process.")
@click.option("--rounds", default=7, show_default=True, help=f"Rounds of {EVERY} steps.")
def main(batch: int, rounds: int) -> None:
    """Show the time of a step with and without the guard, and of a look at the weights."""
    world = hk.init()
    hk.pin()
    loops = {name: loop(world, batch, guarded) for name, guarded in (("without", False), ("with", True))}
    times = interleaved({name: train for name, (_, train) in loops.items()}, EVERY, rounds)
    world.guard = True
    look = statistics.median(one_look(world, loops["with"][0]) for _ in range(20))
    if world.is_root:
        weights = sum(int(np.prod(weight.shape)) for weight in loops["with"][0].trainable_variables)
        where = f"{world.size} processes, engine {world.engine.name}"
        click.echo(f"mnist_cnn, {weights:,} weights, batch {batch}, {where}")
        for name, spent in times.items():
            click.echo(f"{name:8}{spent:10.1f} us a step")
        click.echo(f"with / without {times['with'] / times['without']:.4f}")
        click.echo(f"a look {look:.0f} us, {look / times['without'] / EVERY:.2%} of the {EVERY} steps between two")


if __name__ == "__main__":
    main()
