"""Keras on TensorFlow: hvdkit's ``fit`` beside loops by hand, stock Horovod, TensorFlow's strategies and one process.

Started by any launcher; all methods take turns in the same processes, so that their ratios are of one run:

    hvdkit run -np 2 --engine mpi -m benchmarks.keras --batch 64
"""

from __future__ import annotations

import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

import click
import keras
import tensorflow as tf

import hvdkit.keras as hk
from benchmarks import keras_methods as methods
from benchmarks import keras_strategies as strategies
from benchmarks.keras_methods import Run
from hvdkit.engines.horovod.installed import built_for, mpi_built
from hvdkit.process.environment import launched_as

KERAS_2 = keras.__version__.startswith("2.")
# these run in rank 0 alone: one process without distribution, and one process with a device for each rank
ONE_PROCESS, MIRRORED = "one process", "MirroredStrategy"


def horovod_runs(world: Any) -> bool:
    """Say whether stock Horovod lives in these processes, as the engine or beside it."""
    if world.engine.name == "horovod":
        return True
    if not (built_for("tf") and mpi_built() and launched_as().launcher == "mpirun"):
        return False
    import horovod.tensorflow as hvd

    hvd.init()
    return True


def build(world: Any, batch: int, steps: int) -> dict[str, Run]:
    """Return an epoch of each method that this environment has."""
    runs: dict[str, Run] = {}
    # it must come before TensorFlow's first operation, which Horovod's start is
    if KERAS_2 and world.engine.name == "mpi":
        strategy = strategies.multi_worker(world)
        runs["MultiWorkerMirroredStrategy"] = strategies.epoch_of(strategy, batch, steps)
    if KERAS_2:
        runs[MIRRORED] = strategies.mirrored(world.size, batch, steps) if world.is_root else lambda: None
    runs[ONE_PROCESS] = methods.fit(methods.compiled_model(), batch, steps)
    runs["tape loop"] = methods.tape_loop(methods.flat_average(world.engine.name), batch, steps)
    if horovod_runs(world):
        runs["tape loop, stock Horovod"] = methods.tape_loop(methods.horovod_grouped, batch, steps)
        if KERAS_2:
            runs["stock Horovod's fit"] = methods.fit(methods.horovod_model(), batch, steps)
    runs["hvdkit's fit"] = methods.fit(methods.hvdkit_model(), batch, steps)
    return runs


def measure(world: Any, runs: dict[str, Run], batch: int, steps: int, rounds: int) -> dict[str, list[float]]:
    """Return the samples per second over all ranks of each method and round; a first round is left out."""
    rates: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds + 1):
        for name, run in runs.items():
            world.barrier()
            began = time.perf_counter()
            if world.is_root or name not in (ONE_PROCESS, MIRRORED):
                run()
            spent = float(world.allreduce(time.perf_counter() - began, "max"))
            if number:
                rates[name].append(batch * steps * (1 if name == ONE_PROCESS else world.size) / spent)
    return rates


def show(world: Any, rates: dict[str, list[float]]) -> None:
    """Print the medians, and hvdkit's part of each."""
    medians = {name: statistics.median(values) for name, values in rates.items()}
    click.echo(
        f"{world.size} processes, engine {world.engine.name}, TensorFlow {tf.__version__}, Keras {keras.__version__}"
    )
    for name, rate in medians.items():
        spread = (max(rates[name]) - min(rates[name])) / rate
        ratio = medians["hvdkit's fit"] / rate
        best = max(rates["hvdkit's fit"]) / max(rates[name])
        click.echo(
            f"{name:28}{rate:8.0f} samples/s  hvdkit's fit is {ratio:.2f} of it, {best:.2f} of its best round  "
            f"spread {spread:.0%}"
        )


@click.command()
@click.option("--batch", default=64, show_default=True, help="Images per process and step.")
@click.option("--steps", default=40, show_default=True, help="Steps in a round.")
@click.option("--rounds", default=9, show_default=True)
@click.option("--engine", default="auto", show_default=True)
@click.option("--bind", is_flag=True, help="Give each process one core.")
@click.option("--json", "path", help="Write all rounds to this file.")
def main(batch: int, steps: int, rounds: int, engine: str, bind: bool, path: str | None) -> None:
    """Show samples per second of each method, and the ratios."""
    world = hk.init(engine)
    if bind:
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[world.local_rank]})
    hk.pin(1)
    rates = measure(world, build(world, batch, steps), batch, steps, rounds)
    if not world.is_root:
        return
    show(world, rates)
    if path:
        about = {"size": world.size, "engine": world.engine.name, "batch": batch, "steps": steps}
        Path(path).write_text(json.dumps({"about": about, "samples_per_second": rates}, indent=1))


if __name__ == "__main__":
    main()
