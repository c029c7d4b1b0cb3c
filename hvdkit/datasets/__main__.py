"""``python -m hvdkit.datasets NAME --data-dir D``: fetches a set, before the processes that train on it start."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from hvdkit.datasets.fetch import download
from hvdkit.datasets.sources import SOURCES
from hvdkit.errors import HvdkitError


@click.command(name="python -m hvdkit.datasets")
@click.argument("name", type=click.Choice(list(SOURCES)))
@click.option("--data-dir", required=True, type=click.Path(path_type=Path), help="The folder for the files.")
@click.option("--url", help="A mirror: the folder on a server that has the same files.")
def fetch(name: str, data_dir: Path, url: str | None) -> None:
    """Fetch the data set NAME into a folder, once, and check that its files are the right ones."""
    fetched = download(name, data_dir, url, progress=True)
    click.echo(f"{name} is in {data_dir}" if fetched else f"{name} was already in {data_dir}")


if __name__ == "__main__":
    try:
        fetch()
    except HvdkitError as error:
        click.echo(f"hvdkit: error: {error}", err=True)
        sys.exit(1)
