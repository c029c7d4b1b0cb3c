"""Where the recipe comes from: a file that every process loads itself, or an object that travels."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvdkit.errors import RecipeError
from hvdkit.recipe.declaration import Recipe
from hvdkit.tools.verification.preflight import check_file


@dataclass(frozen=True)
class Source:
    """A recipe, or the file and the name under which it is found.

    Attributes:
        recipe: The recipe itself; None if it is in a file.
        path: The file.
        name: A recipe in it, or a function without arguments that returns one.
    """

    recipe: Recipe | None = None
    path: str = ""
    name: str = "recipe"

    @classmethod
    def parse(cls, text: str) -> Source:
        """Read ``FILE.py`` or ``FILE.py:NAME``.

        Raises:
            RecipeError: There is no such file, or nothing of this name in it.
        """
        path, colon, name = text.rpartition(":")
        if not colon:
            path, name = text, "recipe"
        check_file(path, name)
        return cls(path=str(Path(path).resolve()), name=name)

    def load(self) -> Recipe:
        """Return the recipe.

        Raises:
            RecipeError: The file has nothing of this name, or it is no recipe.
        """
        found = self.recipe if self.recipe is not None else _attribute(self.path, self.name)
        if callable(found) and not isinstance(found, Recipe):
            found = found()
        if not isinstance(found, Recipe):
            raise RecipeError(f"{self.name!r} is a {type(found).__name__}, not an hvdkit.Recipe")
        return found

    def __str__(self) -> str:
        return f"{Path(self.path).name}:{self.name}" if self.path else "recipe"


def _attribute(path: str, name: str) -> Any:
    module_name = Path(path).stem
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise RecipeError(f"{path!r} is not a Python file")
    sys.path.insert(0, str(Path(path).parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    spec.loader.exec_module(module)
    if not hasattr(module, name):
        raise RecipeError(f"{path} has no {name!r}; name the recipe: {Path(path).name}:NAME")
    return getattr(module, name)
