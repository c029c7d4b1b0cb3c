"""What hvdkit costs the host on one process without an engine: time per step of a model that does next to nothing.

    python -m benchmarks.overhead

The same loop with and without hvdkit takes turns in one process; the difference is put beside a real step's time.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from typing import Any

import click
import numpy as np
import torch

import hvdkit
import hvdkit.torch as hk
from benchmarks.timing import interleaved


class Nothing(torch.nn.Module):
    """One parameter, one multiplication."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


def parts(build: Callable[[], torch.nn.Module], distributed: bool) -> tuple[Any, Any]:
    """Build a model and its optimizer, distributed or not."""
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    return model, hk.distribute(optimizer, model) if distributed else optimizer


def steps(model: Any, optimizer: Any, loss: Callable[..., Any], batches: Iterable[Any]) -> None:
    """Train as a plain script does."""
    for x, y in batches:
        loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


def no_op_runs(count: int) -> dict[str, Callable[[], None]]:
    """Make the plain loop, the loop with the verbs, and a recipe's whole epoch, over the same batches."""
    x, y = np.ones((count, 1), np.float32), np.zeros((count, 1), np.float32)
    pairs = [(torch.ones(1, 1), torch.zeros(1, 1))] * count
    shards = hk.shard((x, y), 1)
    loss = torch.nn.functional.mse_loss
    recipe = hvdkit.Recipe(
        model=Nothing, data=hvdkit.Data(train=(x, y)), loss=loss, optimizer=hvdkit.SGD(lr=1e-6), batch_size=1
    )
    trainer = hvdkit.apply(recipe, framework="torch")
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*map(torch.from_numpy, (x, y))), 1, True)
    plain, ours, loaded, sharded = (parts(Nothing, distributed) for distributed in (False, True, False, True))
    return {
        "plain loop": lambda: steps(*plain, loss, pairs),
        "distribute": lambda: steps(*ours, loss, pairs),
        "plain loop, DataLoader": lambda: steps(*loaded, loss, loader),
        "shard and distribute": lambda: steps(*sharded, loss, shards),
        "recipe": lambda: trainer._train_epoch() and None,
    }


def mnist_step(batch: int) -> float:
    """Return the microseconds of one plain step of the MNIST CNN."""
    model, optimizer = parts(lambda: hk.build_model("mnist_cnn", 0, "cpu"), False)
    pairs = [(torch.randn(batch, 1, 28, 28), torch.randint(0, 10, (batch,)))] * 10
    loss = torch.nn.functional.cross_entropy
    return interleaved({"mnist": lambda: steps(model, optimizer, loss, pairs)}, 10, 5)["mnist"]


@click.command()
@click.option("--steps", "count", default=500, show_default=True, help="Steps in a round.")
@click.option("--rounds", default=9, show_default=True)
@click.option("--batch", default=64, show_default=True, help="Images of the MNIST step.")
@click.option("--json", "path", help="Write the figures to this file.")
def main(count: int, rounds: int, batch: int, path: str | None) -> None:
    """Show microseconds per step, and what hvdkit adds as a part of a real step."""
    torch.set_num_threads(1)
    hk.init("serial")
    times = interleaved(no_op_runs(count), count, rounds)
    step = mnist_step(batch)
    base = {"distribute": "plain loop", "shard and distribute": "plain loop, DataLoader"}
    base["recipe"] = base["shard and distribute"]
    for name, spent in times.items():
        added = spent - times[base.get(name, name)]
        of_step = f"  {added:+7.1f} us, {added / step:+.2%} of an MNIST step" if name in base else ""
        click.echo(f"{name:24}{spent:8.1f} us{of_step}")
    click.echo(f"{f'MNIST CNN, batch {batch}':24}{step:8.1f} us, torch {torch.__version__}, one thread")
    if path:
        with open(path, "w") as file:
            json.dump(
                {"microseconds": times, "mnist_step": step, "batch": batch, "python": sys.version}, file, indent=1
            )


if __name__ == "__main__":
    main()
