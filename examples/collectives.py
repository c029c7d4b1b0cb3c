"""Show what each collective does, on N ranks.

hvdkit run -np 3 --engine mpi examples/collectives.py
"""

from __future__ import annotations

from typing import Any

import click
import numpy as np

import hvdkit
from hvdkit.process.failures import watch_exceptions


def results(world: Any) -> dict[str, Any]:
    """Call every collective on small arrays that tell the rank."""
    engine, rank, size = world.engine, world.rank, world.size
    pieces = [np.arange(number + 1) for number in range(size)] if rank == 0 else None
    return {
        "allreduce mean": engine.allreduce([rank, 1.0]),
        "allreduce sum": engine.allreduce([rank, 1], "sum"),
        "allreduce min": engine.allreduce(rank, "min"),
        "allreduce max": engine.allreduce(rank, "max"),
        "reduce sum to 0": engine.reduce(rank, "sum", root=0),
        "allgather": engine.allgather(np.full(rank + 1, rank)),
        "broadcast from 0": engine.broadcast([10 + rank], root=0),
        "gather to 0": engine.gather([rank] * rank, root=0),
        "scatter from 0": engine.scatter(pieces, root=0),
        "alltoall": engine.alltoall(np.arange(size) + 10 * rank),
    }


@click.command()
@click.option("--engine", default="auto", show_default=True, help="horovod, torch, mpi, serial or auto.")
def main(engine: str) -> None:
    """Print the result of each collective on each rank, in rank order."""
    watch_exceptions()
    world = hvdkit.init(engine)
    gathered = results(world)
    for name in gathered:
        for rank, value in enumerate(world.engine.allgather_object(gathered[name])):
            if world.is_root:
                click.echo(f"{name:18} rank {rank}: {_text(value)}")
    world.barrier()
    world.shutdown()


def _text(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(_text(part) for part in value)
    return "-" if value is None else str(np.asarray(value).tolist())


if __name__ == "__main__":
    main()
