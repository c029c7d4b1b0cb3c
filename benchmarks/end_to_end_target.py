"""The time to an accuracy on validation data, for ``end_to_end``: DDP in a script, and hvdkit by recipe."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import click

from benchmarks.end_to_end_methods import Ddp, Recipe, Task, seconds
from benchmarks.timing import ratios, spread
from benchmarks.torch_methods import Job

METHODS = ("ddp", "recipe")


def time_to(
    job: Job, task: Task, target: float, limit: int, repeats: int
) -> tuple[dict[str, list[float]], dict[str, list[int]]]:
    """Return the seconds to a validation accuracy, and the epochs, of each method and round; one epoch is left out."""
    spent: dict[str, list[float]] = {name: [] for name in METHODS}
    epochs: dict[str, list[int]] = {name: [] for name in METHODS}
    for number in range(repeats + 1):
        last = limit if number else 1
        seeded = dataclasses.replace(task, seed=number)
        runs = {"ddp": _ddp_run(job, seeded, target, last), "recipe": _recipe_run(job, seeded, target, last)}
        for name, run in runs.items():
            taken, found = seconds(job, run)
            if number and found is None:
                raise click.ClickException(f"{name} has not reached {target} in {last} epochs")
            if number:
                spent[name].append(taken)
                epochs[name].append(found)
    return spent, epochs


def _ddp_run(job: Job, task: Task, target: float, last: int) -> Callable[[], int | None]:
    method = Ddp(job, task)

    def run() -> int | None:
        for number in range(last):
            method.epoch()
            if method.accuracy() >= target:
                return number + 1
        return None

    return run


def _recipe_run(job: Job, task: Task, target: float, last: int) -> Callable[[], int | None]:
    changes = {"epochs": last, "metrics": ("accuracy",), "stop_at": {"accuracy": target}}
    trainer = Recipe(job, task, **changes).trainer

    def run() -> int | None:
        found = trainer.fit().values("val_accuracy")
        return len(found) if found[-1] >= target else None

    return run


def target_table(spent: dict[str, list[float]], epochs: dict[str, list[int]]) -> str:
    """Return the seconds and epochs of each method, and the ratio of the seconds, as lines."""
    lines = [f"{'':10}{'seconds':>26}{'epochs':>20}{'ddp takes so often as long':>32}"]
    for name, values in spent.items():
        counts = spread([float(count) for count in epochs[name]], 0)
        lines.append(f"{name:10}{spread(values):>26}{counts:>20}{ratios(spent, 'ddp', name):>32}")
    return "\n".join(lines)
