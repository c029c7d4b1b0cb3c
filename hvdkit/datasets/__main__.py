"""``python -m hvdkit.datasets``: fetches a set or sorts one, before the processes that train on it start."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from hvdkit.datasets.fetch import download
from hvdkit.datasets.sort_validation import sort_validation
from hvdkit.datasets.sources import SOURCES
from hvdkit.errors import HvdkitError


class _Commands(click.Group):
    """Names what there is when something else is asked for."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args[0] not in self.commands:
            ctx.fail(f"{args[0]!r} is unknown; choose from {', '.join(map(repr, self.commands))}")
        return super().resolve_command(ctx, args)


@click.group(name="python -m hvdkit.datasets", cls=_Commands)
def main() -> None:
    """Fetch a data set, once, and check that its files are the right ones; or sort images into class folders."""


def _fetching(name: str) -> click.Command:
    @click.command(name, help=f"Fetch {name} into a folder.")
    @click.option("--data-dir", required=True, type=click.Path(path_type=Path), help="The folder for the files.")
    @click.option("--url", help="A mirror: the folder on a server that has the same files.")
    def fetch(data_dir: Path, url: str | None) -> None:
        fetched = download(name, data_dir, url, progress=True)
        click.echo(f"{name} is in {data_dir}" if fetched else f"{name} was already in {data_dir}")

    return fetch


for _name in SOURCES:
    main.add_command(_fetching(_name))


@main.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.argument("labels", type=click.Path(path_type=Path))
def sort_val(folder: Path, labels: Path) -> None:
    """Move the validation images in FOLDER into one folder per class.

    Each line of the text file LABELS begins with an image's name and its class.
    """
    click.echo(f"{sort_validation(folder, labels)} images moved into class folders of {folder}")


if __name__ == "__main__":
    try:
        main()
    except HvdkitError as error:
        click.echo(f"hvdkit: error: {error}", err=True)
        sys.exit(1)
