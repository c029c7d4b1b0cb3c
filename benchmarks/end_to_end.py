"""Whole training, as people run it: DDP and others in scripts, hvdkit by recipe and by its verbs; samples per second.

All methods take turns in the same processes, from the same weights, with the same optimizer and global batch, and
ratios are taken within each round; see ``end_to_end_methods`` for what each of them is:

    hvdkit run -np 2 -m benchmarks.end_to_end --data mnist-shape --compute-only
    hvdkit run -np 2 -m benchmarks.end_to_end --data jpeg --folder DIR --make-jpegs 4000 --workers 8
    hvdkit run -np 2 -m benchmarks.end_to_end --time-to 0.90
"""

from __future__ import annotations

import functools
import json
import platform
from pathlib import Path
from typing import Any

import click
import torch

from benchmarks import end_to_end_data as data
from benchmarks.end_to_end_methods import METHODS, Task, UpdateAlone, left_out, seconds
from benchmarks.end_to_end_target import target_table, time_to
from benchmarks.timing import ratios, spread
from benchmarks.torch_methods import Job
from hvdkit.torch.tensors import sum_of_bits

ALONE = "{}, update alone"
FASHION = "fashion-mnist"
# what the others are held against
BASES = {"mnist-shape": "ddp", "resnet": "ddp", "jpeg": "loader"}


def update_of(name: str, absent: dict[str, str]) -> str:
    """Return the method whose update is what a method would reach if nothing else took time."""
    return ("eight-lines" if "captured" in absent else "captured") if name == "recipe" else name


def build(job: Job, task: Task, names: list[str], alone: bool) -> dict[str, Any]:
    """Return each method, ready to train, and what to hold them against.

    Raises:
        ClickException: They differ in their first weights, or in the number of updates of an epoch.
    """
    methods = {name: METHODS[name](job, task) for name in names}
    if alone:
        updates = dict.fromkeys(update_of(name, left_out(job)) for name in names if name != "loader")
        methods |= {ALONE.format(name): UpdateAlone(METHODS[name](job, task)) for name in updates}
    steps = {name: method.steps for name, method in methods.items()}
    if len(set(steps.values())) > 1 or not min(steps.values()):
        raise click.ClickException(f"all methods must do as many updates in an epoch, and one at least: {steps}")
    weights = {name: digest(method.model) for name, method in methods.items() if name != "loader"}
    if len(set(weights.values())) > 1:
        raise click.ClickException(f"all methods must begin with the same weights: {weights}")
    return methods


def digest(model: torch.nn.Module) -> int:
    """Return a number that changes with any weight, in whatever strides they are."""
    return sum(int(sum_of_bits(parameter.detach())) for parameter in model.parameters())


def measure(
    job: Job, methods: dict[str, Any], samples: int, epochs: int, repeats: int
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Return the samples per second over all ranks of each method and round, and the losses; one epoch is left out."""
    rates: dict[str, list[float]] = {name: [] for name in methods}
    losses: dict[str, list[float]] = {name: [] for name in methods}
    for number in range(repeats + 1):
        count = epochs if number else 1
        for name, method in methods.items():
            spent, found = seconds(job, functools.partial(method.train, count))
            losses[name] += [float(job.world.allreduce(loss, "mean")) for loss in found]
            if number:
                rates[name].append(samples * count / spent)
    return rates, losses


def check_trained(losses: dict[str, list[float]]) -> None:
    """Check that each method's loss fell.

    Raises:
        ClickException: One did not.
    """
    for name, values in losses.items():
        if values and not values[-1] < values[0]:
            raise click.ClickException(
                f"{name} has not trained: its loss went from {values[0]:.4f} to {values[-1]:.4f}"
            )


def table(rates: dict[str, list[float]], losses: dict[str, list[float]], base: str, absent: dict[str, str]) -> str:
    """Return medians with the lowest and the highest, ratios within rounds, and losses, as lines."""
    lines = [f"{'':26}{'samples/s':>32}{f'of {base}':>22}{'of its update alone':>22}  loss"]
    for name, values in rates.items():
        alone = ratios(rates, name, ALONE.format(update_of(name, absent)))
        loss = f"{losses[name][0]:.3f} to {losses[name][-1]:.3f}" if losses[name] else "no training"
        lines.append(f"{name:26}{spread(values, 0):>32}{ratios(rates, name, base):>22}{alone:>22}  {loss}")
    return "\n".join([*lines, *(f"{name:26}{reason}" for name, reason in absent.items())])


def chosen(job: Job, methods: str | None, kind: str) -> list[str]:
    """Return the methods to measure: those asked for, or the usual ones, as far as they can run here.

    Raises:
        UsageError: There is no such method.
    """
    usual = ["loader", "ddp", "recipe"] if kind == "jpeg" else [name for name in METHODS if name != "loader"]
    names = methods.split(",") if methods else usual
    for name in names:
        if name not in METHODS:
            raise click.UsageError(f"method {name!r} is unknown; use {','.join(METHODS)}")
    return [name for name in names if name not in left_out(job)]


def task_for(job: Job, options: dict[str, Any]) -> Task:
    """Return what to train."""
    settings = {name: options[name] for name in ("batch_size", "lr", "precision", "workers")}
    if options["kind"] == FASHION:
        return data.fashion_task(options["model"], options["samples"], **settings)
    if options["kind"] != "jpeg":
        return data.array_task(options["kind"], options["model"], options["samples"], **settings)
    if options["folder"] is None or options["model"] or options["samples"]:
        raise click.UsageError("--data jpeg needs --folder, and trains resnet34 on all that is in it")
    folder = Path(options["folder"])
    if options["make_jpegs"]:
        job.world.root_only(lambda: data.make_jpegs(folder, options["make_jpegs"]))
    return data.jpeg_task(folder, **settings)


def run(job: Job, options: dict[str, Any]) -> tuple[str, dict[str, Any], dict[str, list[float]]]:
    """Measure; return a table, what goes into the file, and the losses."""
    task = task_for(job, options)
    if options["kind"] == FASHION:
        spent, epochs = time_to(job, task, options["time_to"], options["epochs"] or 30, options["repeats"])
        return target_table(spent, epochs), {"seconds": spent, "epochs": epochs}, {}
    names = chosen(job, options["methods"], options["kind"])
    methods = build(job, task, names, options["compute_only"])
    samples = next(iter(methods.values())).steps * task.batch_size * job.size
    rates, losses = measure(job, methods, samples, options["epochs"] or 1, options["repeats"])
    text = table(rates, losses, BASES[options["kind"]], left_out(job))
    return text, {"samples_per_second": rates, "losses": losses}, losses


@click.command()
@click.option("--data", "kind", type=click.Choice(list(BASES)), default="mnist-shape", show_default=True)
@click.option("--model", type=click.Choice(sorted(data.MODELS.values())), help="Default: what fits the data.")
@click.option("--samples", type=click.IntRange(min=1), help=f"Of arrays; default: {data.SAMPLES}.")
@click.option("--folder", metavar="DIR", help="Class folders of images, for --data jpeg.")
@click.option("--make-jpegs", type=click.IntRange(min=1), metavar="N", help="First write so many into the folder.")
@click.option(
    "--workers", default=0, show_default=True, help="Loader processes of each process, but for arrays in hvdkit."
)
@click.option("--batch-size", default=64, show_default=True, help="Samples per process and step.")
@click.option("--lr", default=0.01, show_default=True, help="Of one process; it is multiplied by their number.")
@click.option("--precision", type=click.Choice(["fp32", "bf16"]), default="fp32", show_default=True)
@click.option("--epochs", type=click.IntRange(min=1), help="In a round, default 1; of --time-to at most, default 30.")
@click.option("--repeats", default=5, show_default=True, help="Rounds.")
@click.option("--methods", metavar="A,B,C", help=f"Of {','.join(METHODS)}; default: all here; jpeg: loader,ddp,recipe.")
@click.option("--compute-only", is_flag=True, help="Also measure the update alone, on one batch on the device.")
@click.option(
    "--time-to",
    type=click.FloatRange(0, 1),
    metavar="A",
    help="Seconds of ddp and recipe to this accuracy on Fashion-MNIST.",
)
@click.option("--json", "path", help="Write all rounds to this file.")
def main(path: str | None, **options: Any) -> None:
    """Compare ways to train."""
    if options["time_to"] is not None:
        options["kind"] = FASHION
    job = Job.join(compiled=False, compression="none")
    text, results, losses = run(job, options)
    if job.rank == 0:
        settings = ", ".join(f"{name} {value}" for name, value in options.items() if value)
        click.echo(f"{job.size} process(es), {job.device_name()}, torch {torch.__version__}, {settings}\n{text}")
        if path:
            about = {"torch": torch.__version__, "device": job.device_name(), "python": platform.python_version()}
            Path(path).write_text(json.dumps({"about": about, "size": job.size, **options, **results}, indent=1))
    check_trained(losses)
    job.leave()


if __name__ == "__main__":
    main()
