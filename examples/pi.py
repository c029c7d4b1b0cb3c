"""Estimate pi by throwing darts on N ranks, and allreduce the hits.

hvdkit run -np 2 examples/pi.py --samples 5000000
"""

from __future__ import annotations

import time

import click
import numpy as np

import hvdkit
from hvdkit.process.failures import watch_exceptions

CHUNK = 1_000_000


def hits(samples: int, seed: int) -> int:
    """Return how many of ``samples`` darts at the unit square fall into the quarter circle."""
    generator = np.random.default_rng(seed)
    inside = 0
    for start in range(0, samples, CHUNK):
        x, y = generator.random((2, min(CHUNK, samples - start)))
        inside += int(np.count_nonzero(x * x + y * y <= 1.0))
    return inside


@click.command()
@click.option("--samples", default=5_000_000, show_default=True, help="Darts over all ranks.")
@click.option("--engine", default="auto", show_default=True, help="horovod, torch, mpi, serial or auto.")
def main(samples: int, engine: str) -> None:
    """Estimate pi; the darts are divided over the ranks."""
    watch_exceptions()
    world = hvdkit.init(engine)
    began = time.perf_counter()
    mine = samples // world.size + (world.rank < samples % world.size)
    inside = world.allreduce(hits(mine, seed=world.rank), "sum")
    seconds = world.allreduce(time.perf_counter() - began, "max")
    if world.is_root:
        click.echo(
            f"pi is about {4 * int(inside) / samples:.5f} ({samples} darts, {world.size} ranks, {seconds:.2f} s)"
        )
    world.shutdown()


if __name__ == "__main__":
    main()
