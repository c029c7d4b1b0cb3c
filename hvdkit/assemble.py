"""``apply``: chooses the backend and lets it walk the eight steps."""

from __future__ import annotations

import importlib

from hvdkit.errors import RecipeError
from hvdkit.protocol import Backend
from hvdkit.recipe import FRAMEWORKS, Recipe
from hvdkit.training import Trainer


def apply(recipe: Recipe, framework: str) -> Trainer:
    """Carry out the eight steps of a recipe in one framework.

    Args:
        recipe: What to train, and how to distribute it.
        framework: ``torch``, ``tf`` or ``keras``.

    Returns:
        A trainer whose model is built, distributed and the same on all ranks.

    Raises:
        RecipeError: The framework is unknown or not installed.
        EngineError: The engine cannot serve this framework.
        LaunchError: Launcher and engine do not fit.
        DataError: The data are empty, too small or malformed.
        ModelError: The model cannot be trained as it is.
    """
    if framework not in FRAMEWORKS:
        raise RecipeError(f"framework {framework!r} is unknown; use one of {', '.join(FRAMEWORKS)}")
    if not isinstance(recipe, Recipe):
        raise RecipeError(f"apply needs an hvdkit.Recipe, it got {type(recipe).__name__}")
    return _backend(framework).make_trainer(recipe)


def _backend(framework: str) -> Backend:
    try:
        backend: Backend = importlib.import_module(f"hvdkit.{framework}")
    except ModuleNotFoundError as error:
        if error.name and error.name.split(".")[0] == "hvdkit":
            raise
        raise RecipeError(
            f"framework {framework!r} needs the package {error.name!r}; "
            f"install it with: pip install 'hvdkit[{framework}]'"
        ) from error
    return backend
