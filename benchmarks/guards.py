"""What it costs to look whether data and weights are the same on all processes.

    hvdkit run -np 2 -m benchmarks.guards --model mnist_cnn

The same training steps with the guard and without take turns in one job. One look at the weights is timed by itself,
since its share of the steps is less than what two runs of them differ by.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import click
import numpy as np
import torch

import hvdkit.torch as hk
from benchmarks.timing import interleaved
from hvdkit.job.world import World
from hvdkit.torch import drift
from hvdkit.torch.models import resnet34
from hvdkit.training.drift import EVERY


def loop(world: World, name: str, batch: int, device: str) -> tuple[Any, Callable[[bool], None]]:
    """Return a model, and what trains it for as many steps as stand between two looks."""
    image = (1, 28, 28) if name == "mnist_cnn" else (3, 32, 32)
    torch.manual_seed(0)
    model = (
        hk.build_model("mnist_cnn", 0, device)
        if name == "mnist_cnn"
        else hk.build_model(lambda: resnet34((32, 32, 3), 10), 0, device)
    )
    optimizer = hk.distribute(torch.optim.SGD(model.parameters(), lr=1e-4), model)
    hk.broadcast(model, optimizer)
    x, y = torch.randn(batch, *image, device=device), torch.randint(0, 10, (batch,), device=device)

    def train(guarded: bool) -> None:
        world.guard = guarded
        drift.guard(world)
        for _ in range(EVERY):
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        if device != "cpu":
            torch.cuda.synchronize()

    return model, train


def one_look(world: World, model: torch.nn.Module) -> float:
    """Return the microseconds of one comparison of all weights."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    began = time.perf_counter()
    drift.look_before_step(world, optimizer)
    return (time.perf_counter() - began) * 1e6


def one_shard(world: World, guarded: bool) -> float:
    """Return the milliseconds of one ``shard`` of arrays."""
    world.guard = guarded
    data = np.zeros((60_000, 28, 28, 1), np.float32), np.zeros(60_000, np.int64)
    began = time.perf_counter()
    hk.shard(data, 64)
    return (time.perf_counter() - began) * 1e3


@click.command()
@click.option("--model", default="mnist_cnn", show_default=True, type=click.Choice(["mnist_cnn", "resnet34"]))
@click.option("--batch", default=64, show_default=True, help="Images of a step on each process.")
@click.option("--rounds", default=9, show_default=True, help=f"Rounds of {EVERY} steps.")
def main(model: str, batch: int, rounds: int) -> None:
    """Show the time of a step with and without the guard, of a look at the weights and of a ``shard``."""
    world = hk.init()
    device = hk.pin()
    trained, train = loop(world, model, batch, device)
    times = interleaved({"without": lambda: train(False), "with": lambda: train(True)}, EVERY, rounds)
    shards = {guarded: min(one_shard(world, guarded) for _ in range(5)) for guarded in (False, True)}
    world.guard = True
    look = statistics.median(one_look(world, trained) for _ in range(20))
    if world.is_root:
        weights = sum(parameter.numel() for parameter in trained.parameters())
        where = f"{world.size} processes on {device}, engine {world.engine.name}"
        click.echo(f"{model}, {weights:,} weights, batch {batch}, {where}")
        for name, spent in times.items():
            click.echo(f"{name:8}{spent:10.1f} us a step")
        click.echo(f"with / without {times['with'] / times['without']:.4f}")
        click.echo(f"a look {look:.0f} us, {look / times['without'] / EVERY:.2%} of the {EVERY} steps between two")
        click.echo(f"shard {shards[False]:.2f} ms without, {shards[True]:.2f} ms with")


if __name__ == "__main__":
    main()
