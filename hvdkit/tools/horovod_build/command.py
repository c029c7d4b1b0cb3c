"""The command ``hvdkit build-horovod``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from hvdkit.process.environment import cache_dir
from hvdkit.tools.horovod_build import builder
from hvdkit.tools.horovod_build.plan import BuildPlan, make_plan
from hvdkit.tools.horovod_build.proof import prove
from hvdkit.tools.horovod_build.source import HOROVOD_VERSION


@click.command("build-horovod")
@click.option(
    "--framework",
    "frameworks",
    multiple=True,
    type=click.Choice(["torch", "tf", "keras"]),
    help="Build for this framework; may be given more than once. Default: those that are installed.",
)
@click.option(
    "--gpu",
    type=click.Choice(["auto", "none", "nccl"]),
    default="auto",
    show_default=True,
    help="NVIDIA GPUs through NCCL; auto: if a GPU, a CUDA toolkit and NCCL are found.",
)
@click.option(
    "--mpi",
    type=click.Choice(["auto", "on", "off"]),
    default="auto",
    show_default=True,
    help="The MPI controller beside Gloo; auto: if an mpicxx is found.",
)
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    help="Compiler processes at a time. Default: as many as cores and memory allow.",
)
@click.option("--no-cache", is_flag=True, help="Build even if the cache holds this wheel.")
@click.option("--dry-run", is_flag=True, help="Print what would be done and touch nothing.")
def build_horovod(
    frameworks: tuple[str, ...], gpu: str, mpi: str, jobs: int | None, no_cache: bool, dry_run: bool
) -> None:
    """Build Horovod for the frameworks of this environment, install it, and prove it with two processes."""
    plan = make_plan(frameworks, gpu, mpi, jobs)
    cache = Path(cache_dir()) / "horovod"
    console = Console()
    console.print(_plan_table(plan, cache, use_cache=not no_cache))
    if dry_run:
        console.print("dry run: nothing was done")
        return
    log_file = builder.log_path(cache, plan)
    log_file.parent.mkdir(parents=True, exist_ok=True)
    with log_file.open("a") as log, _progress(console) as report:
        wheel = builder.obtain_wheel(plan, cache, log, report, use_cache=not no_cache)
        report("installing", None)
        builder.install(wheel, log)
        _prove_all(plan, log, report)
    console.print(f"Horovod {HOROVOD_VERSION} is installed and proven; log: {log_file}", soft_wrap=True)


def _prove_all(plan: BuildPlan, log: TextIO, report: builder.Report) -> None:
    for framework in plan.frameworks:
        for controller in ("gloo", "mpi") if plan.mpi else ("gloo",):
            report(f"proving {framework} with {controller} on two processes", None)
            prove(framework, controller, log, plan.mpi.path.parent if plan.mpi else None)


def _plan_table(plan: BuildPlan, cache: Path, *, use_cache: bool) -> Table:
    wheel = builder.cached_wheel(cache, plan) if use_cache else None
    table = Table(title=f"Horovod {HOROVOD_VERSION}", show_header=False, title_justify="left")
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, version in plan.frameworks.items():
        table.add_row(name, version)
    table.add_row("compiler", f"{plan.compiler.version} ({plan.compiler.path})")
    table.add_row("CMake", f"{plan.cmake.version} ({plan.cmake.path})")
    table.add_row("controllers", f"Gloo, MPI: {plan.mpi.version} ({plan.mpi.path})" if plan.mpi else "Gloo")
    gpu = plan.gpu
    table.add_row("GPU", f"CUDA {gpu.cuda}, NCCL {gpu.nccl.version} ({gpu.nccl.library})" if gpu else "none")
    table.add_row("jobs", str(plan.jobs))
    table.add_row("edits of the source", "\n".join(edit.reason for edit in plan.edits()))
    table.add_row("wheel", f"from the cache: {wheel}" if wheel else f"to be built, key {plan.key()}")
    table.add_row("log", str(builder.log_path(cache, plan)))
    return table


@contextmanager
def _progress(console: Console) -> Iterator[builder.Report]:
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    # where the output is no terminal, plain lines take the place of the bar
    with Progress(*columns, TimeElapsedColumn(), console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("starting", total=None)
        said = ""

        def report(what: str, percent: int | None) -> None:
            nonlocal said
            total = None if percent is None else 100
            progress.update(task, description=what, total=total, completed=percent or 0)
            if what != said and not console.is_terminal:
                console.print(what)
            said = what

        yield report
