"""What examples that train by a recipe offer on GPUs: precision, compilation and CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from hvdkit.errors import RecipeError
from hvdkit.recipe.declaration import PRECISIONS

GRAPHS: dict[str, bool | str] = {"auto": "auto", "on": True, "off": False}
PLAIN, FAST = "fp32", "bf16"


def gpu_options(on_gpu: str) -> Callable[[Any], Any]:
    """Add the flags to a command; precision ``auto`` is ``on_gpu`` on a GPU in torch, and fp32 elsewhere."""
    automatic = PLAIN if on_gpu == PLAIN else f"{on_gpu} on a GPU in torch, else {PLAIN}"
    flags = (
        click.option(
            "--precision",
            type=click.Choice(["auto", *PRECISIONS]),
            default="auto",
            show_default=True,
            help=f"What the model computes in; auto: {automatic}.",
        ),
        click.option("--compile", "compiled", is_flag=True, help="Compile the model (torch)."),
        click.option(
            "--cuda-graphs",
            type=click.Choice(list(GRAPHS)),
            default="auto",
            show_default=True,
            help="Replay the update as one CUDA graph (torch); auto: where it can be.",
        ),
    )

    def add(command: Any) -> Any:
        for flag in reversed(flags):
            command = flag(command)
        return command

    return add


def gpu_fields(options: dict[str, Any], framework: str, on_gpu: str) -> dict[str, Any]:
    """Return the fields of a recipe that the flags ask for.

    Raises:
        RecipeError: The framework cannot do it.
    """
    for flag, asked in (("--compile", options["compiled"]), ("--cuda-graphs on", options["cuda_graphs"] == "on")):
        if asked and framework != "torch":
            raise RecipeError(f"{flag} belongs to --framework torch, not to {framework}")
    precision = options["precision"]
    return {
        "precision": _automatic(framework, on_gpu) if precision == "auto" else precision,
        "compile": options["compiled"],
        "cuda_graphs": GRAPHS[options["cuda_graphs"]],
    }


def _automatic(framework: str, on_gpu: str) -> str:
    if framework != "torch" or on_gpu == PLAIN:
        return PLAIN
    try:
        import torch
    except ModuleNotFoundError:
        return PLAIN  # apply says what is missing
    return on_gpu if torch.cuda.is_available() else PLAIN
