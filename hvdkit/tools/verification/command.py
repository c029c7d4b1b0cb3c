"""The command ``hvdkit verify``."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from rich.console import Console

from hvdkit.errors import HvdkitError
from hvdkit.recipe.declaration import FRAMEWORKS
from hvdkit.tools.verification.across import compare
from hvdkit.tools.verification.layout import DTYPES
from hvdkit.tools.verification.report import Report
from hvdkit.tools.verification.report_page import page
from hvdkit.tools.verification.scripts.session import verify_script
from hvdkit.tools.verification.session import verify


def _check_writable(file: str) -> None:
    """Find out before anything runs."""
    try:
        Path(file).touch()
    except OSError as error:
        raise click.UsageError(f"--report {file} cannot be written: {error.strerror}") from None


@click.command("verify")
@click.argument("recipe", metavar="FILE.py[:NAME]")
@click.argument("arguments", nargs=-1, metavar="[-- ARGS]")
@click.option("--framework", type=click.Choice(FRAMEWORKS), help="Compare N processes with one, in this framework.")
@click.option("--across", metavar="F,F[,F]", help="Compare frameworks with each other, one process each.")
@click.option("-np", "--processes", default=2, show_default=True, help="Number of processes, with --framework.")
@click.option("--steps", default=20, show_default=True, help="Optimizer updates, about.")
@click.option("--engine", default="auto", show_default=True, help="auto, horovod, torch or mpi, with --framework.")
@click.option("--dtype", type=click.Choice(DTYPES), default="float32", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("--report", "page_file", type=click.Path(dir_okay=False), help="Write the report as an HTML page.")
def verify_command(
    recipe: str,
    arguments: tuple[str, ...],
    framework: str | None,
    across: str | None,
    processes: int,
    steps: int,
    engine: str,
    dtype: str,
    as_json: bool,
    page_file: str | None,
) -> None:
    """Check that N processes compute what one would, for the recipe in FILE.py.

    NAME is a recipe in the file, or a function that returns one; default: recipe. Without --framework and --across,
    FILE.py is a script with the eight lines, which stays as it is; its own arguments follow after "--". The exit
    code is 0 only if everything holds, 1 if something does not, and 2 if nothing could be verified.
    """
    if framework is not None and across is not None:
        raise click.UsageError("give one of --framework and --across")
    if arguments and (framework is not None or across is not None):
        raise click.UsageError("arguments are for a script, which is verified without --framework and --across")

    if page_file is not None:
        _check_writable(page_file)

    def say(line: str) -> None:
        click.echo(line, err=True)

    try:
        if across is not None:
            report: Report = compare(recipe, across.split(","), steps, dtype, say)
        elif framework is None:
            report = verify_script(recipe, list(arguments), processes, steps, engine, say)
        else:
            report = verify(recipe, framework, processes, steps, engine, dtype, say)
    except HvdkitError as error:
        click.echo(f"hvdkit: error: {error}", err=True)
        sys.exit(2)
    if page_file is not None:
        Path(page_file).write_text(page(report), encoding="utf-8")
    if as_json:
        click.echo(report.as_json())
    else:
        report.show(Console(width=None if sys.stdout.isatty() else 160))
    sys.exit(0 if report.passed else 1)
