"""What the examples that train by a recipe tell at their end: a summary in JSON, and the speed."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import click
import numpy as np

from hvdkit.job.arrays import sha256
from hvdkit.training.observers import Observer


def summarise(trainer: Any) -> dict[str, Any]:
    """Return what came out of a run; called by all ranks."""
    return {
        "framework": trainer.framework,
        "engine": trainer.world.engine.name,
        "size": trainer.world.size,
        "global_batch_size": trainer.global_batch,
        "steps_per_epoch": trainer.steps_per_epoch,
        "learning_rate": trainer.rates.target,
        "seconds_to_first_step": trainer.history.seconds_to_first_step,
        "epochs": trainer.history.epochs,
        "weights_sha256": trainer.world.engine.allgather_object(sha256(trainer.weights())),
    }


def write_summary(trainer: Any, summary: dict[str, Any], folder: str) -> None:
    """Write a summary to ``summary.json``, on rank 0."""
    if trainer.world.is_root:
        Path(folder).mkdir(parents=True, exist_ok=True)
        (Path(folder) / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")


class StepTimes(Observer):
    """How long this rank took: until training began, and for each update; validation is left out."""

    def __init__(self) -> None:
        self.start_up = 0.0
        self._epochs: list[list[Any]] = []

    def on_epoch_begin(self, trainer: Any) -> None:
        if not self._epochs:
            self.start_up = trainer.seconds()
        self._epochs.append([_moment(trainer)])

    def on_step_end(self, trainer: Any) -> None:
        self._epochs[-1].append(_moment(trainer))

    def steps(self) -> list[float]:
        """Return the seconds of each update."""
        return [_between(*pair) for moments in self._epochs for pair in itertools.pairwise(moments)]


def _moment(trainer: Any) -> Any:
    """Note a moment: on a GPU that at which it has done what it was given, without waiting for it."""
    if trainer.framework == "torch":
        import torch

        if torch.cuda.is_available():
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            return event
    return trainer.seconds()


def _between(first: Any, second: Any) -> float:
    if isinstance(first, float):
        return float(second - first)
    second.synchronize()
    return float(first.elapsed_time(second)) / 1000.0


def speed(trainer: Any, times: StepTimes) -> dict[str, Any]:
    """Return start-up, first step and then images per second, of each rank and in total; called by all ranks.

    Means and 1.96 standard deviations are over all steps but the first, which traces, compiles and connects. A step of
    all ranks takes as long as the slowest rank's.
    """
    ranks = trainer.world.engine.allgather_object((times.start_up, times.steps()))
    seconds = np.array([steps[1:] for _, steps in ranks])
    batch = trainer.global_batch / trainer.world.size
    return {
        "start_up_seconds": [start_up for start_up, _ in ranks],
        "first_step_seconds": [steps[0] for _, steps in ranks],
        "steps": seconds.shape[1],
        "per_process": [_spread(batch / row) for row in seconds],
        "total": _spread(trainer.global_batch / seconds.max(axis=0)),
    }


def _spread(rates: Any) -> dict[str, float] | None:
    return {"mean": float(rates.mean()), "plus_minus": float(1.96 * rates.std())} if len(rates) else None


def show_speed(trainer: Any, found: dict[str, Any], weights: list[str]) -> None:
    """Print the speed and the digests of the weights, on rank 0."""
    if not trainer.world.is_root:
        return
    for rank, rate in enumerate(found["per_process"]):
        start_up, first = found["start_up_seconds"][rank], found["first_step_seconds"][rank]
        click.echo(f"rank {rank}: start-up {start_up:.2f} s, first step {first:.2f} s, then {_rate(rate)}")
    click.echo(
        f"total: {_rate(found['total'])} (the slowest rank sets the time; {found['steps']} steps, without the first)"
    )
    for rank, digest in enumerate(weights):
        click.echo(f"weights of rank {rank}: {digest}")


def _rate(rate: dict[str, float] | None) -> str:
    return "no further step" if rate is None else f"{rate['mean']:.1f} ± {rate['plus_minus']:.1f} images/s"
