"""The command line: each subcommand lives beside its tool and is imported when it is called."""

from __future__ import annotations

import importlib
import sys

import click

from hvdkit.errors import HvdkitError
from hvdkit.process.environment import ensure_home
from hvdkit.version import __version__

_COMMANDS = {
    "run": "hvdkit.tools.launch.command:run",
    "build-horovod": "hvdkit.tools.horovod_build.command:build_horovod",
    "doctor": "hvdkit.tools.doctor:doctor",
    "verify": "hvdkit.tools.verification.command:verify_command",
}


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        target = _COMMANDS.get(cmd_name)
        if target is None:
            return None
        module, name = target.split(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command


@click.group(cls=_LazyGroup)
@click.version_option(__version__, prog_name="hvdkit")
def hvdkit() -> None:
    """Data-parallel training for PyTorch, TensorFlow and Keras from one recipe."""


def main() -> None:
    """Run the command line; an hvdkit error is shown as one line, with exit code 1."""
    ensure_home()
    try:
        hvdkit(prog_name="hvdkit")
    except HvdkitError as error:
        click.echo(f"hvdkit: error: {error}", err=True)
        sys.exit(1)
