"""The command ``hvdkit verify``."""

from __future__ import annotations

import sys

import click
from rich.console import Console

from hvdkit.errors import HvdkitError
from hvdkit.recipe.declaration import FRAMEWORKS
from hvdkit.tools.verification.across import compare
from hvdkit.tools.verification.layout import DTYPES
from hvdkit.tools.verification.report import Report
from hvdkit.tools.verification.session import verify


@click.command("verify")
@click.argument("recipe", metavar="FILE.py[:NAME]")
@click.option("--framework", type=click.Choice(FRAMEWORKS), help="Compare N processes with one, in this framework.")
@click.option("--across", metavar="F,F[,F]", help="Compare frameworks with each other, one process each.")
@click.option("-np", "--processes", default=2, show_default=True, help="Number of processes, with --framework.")
@click.option("--steps", default=20, show_default=True, help="Optimizer updates, about.")
@click.option("--engine", default="auto", show_default=True, help="auto, horovod, torch or mpi, with --framework.")
@click.option("--dtype", type=click.Choice(DTYPES), default="float32", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def verify_command(
    recipe: str,
    framework: str | None,
    across: str | None,
    processes: int,
    steps: int,
    engine: str,
    dtype: str,
    as_json: bool,
) -> None:
    """Check that N processes compute what one would, for the recipe in FILE.py.

    NAME is a recipe in the file, or a function that returns one; default: recipe. The exit code is 0 only if
    everything holds, 1 if something does not, and 2 if nothing could be verified.
    """
    if (framework is None) == (across is None):
        raise click.UsageError("give one of --framework and --across")

    def say(line: str) -> None:
        click.echo(line, err=True)

    try:
        if across is not None:
            report: Report = compare(recipe, across.split(","), steps, dtype, say)
        else:
            report = verify(recipe, str(framework), processes, steps, engine, dtype, say)
    except HvdkitError as error:
        click.echo(f"hvdkit: error: {error}", err=True)
        sys.exit(2)
    if as_json:
        click.echo(report.as_json())
    else:
        report.show(Console(width=None if sys.stdout.isatty() else 160))
    sys.exit(0 if report.passed else 1)
