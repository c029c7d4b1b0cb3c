"""The command ``hvdkit verify``."""

from __future__ import annotations

import sys

import click
from rich.console import Console

from hvdkit.recipe import FRAMEWORKS
from hvdkit.verification.layout import DTYPES
from hvdkit.verification.session import verify


@click.command("verify")
@click.argument("recipe", metavar="FILE.py[:NAME]")
@click.option("--framework", type=click.Choice(FRAMEWORKS), required=True)
@click.option("-np", "--processes", default=2, show_default=True, help="Number of processes.")
@click.option("--steps", default=20, show_default=True, help="Optimizer updates, about.")
@click.option("--engine", default="auto", show_default=True, help="auto, horovod, torch or mpi.")
@click.option("--dtype", type=click.Choice(DTYPES), default="float32", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def verify_command(
    recipe: str, framework: str, processes: int, steps: int, engine: str, dtype: str, as_json: bool
) -> None:
    """Check that N processes compute what one would, for the recipe in FILE.py.

    NAME is a recipe in the file, or a function that returns one; default: recipe. The exit code is 0 only if
    everything holds.
    """
    report = verify(recipe, framework, processes, steps, engine, dtype, say=lambda line: click.echo(line, err=True))
    if as_json:
        click.echo(report.as_json())
    else:
        report.show(Console(width=None if sys.stdout.isatty() else 160))
    sys.exit(0 if report.passed else 1)
