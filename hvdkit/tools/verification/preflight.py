"""What can be known to be wrong before any process starts, without importing a framework or the recipe's file."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path

from hvdkit.errors import RecipeError
from hvdkit.process.environment import library_of
from hvdkit.recipe.declaration import FRAMEWORKS

_PACKAGES = {"torch": "torch", "tf": "tensorflow", "jax": "jax"}


def check_framework(framework: str) -> None:
    """Check that a framework is known and installed.

    Raises:
        RecipeError: It is not.
    """
    if framework not in FRAMEWORKS:
        raise RecipeError(f"framework {framework!r} is unknown; use one of {', '.join(FRAMEWORKS)}")
    for package in filter(None, ("keras" if framework == "keras" else None, _PACKAGES.get(library_of(framework)))):
        if importlib.util.find_spec(package) is None:
            raise RecipeError(
                f"framework {framework!r} needs the package {package!r}; install it with: "
                f"pip install 'hvdkit[{framework}]'"
            )


def check_file(path: str, name: str) -> None:
    """Check that a file is Python and binds a name at its top level.

    Raises:
        RecipeError: There is no such file, it cannot be parsed, or nothing in it has this name.
    """
    if not Path(path).is_file():
        raise RecipeError(f"recipe file {path!r} does not exist")
    try:
        tree = ast.parse(Path(path).read_bytes())
    except (SyntaxError, ValueError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        message = error.msg if isinstance(error, SyntaxError) else str(error)
        raise RecipeError(f"{path}{line} is not Python: {message}") from None
    bound = dict(_bound(tree))
    if name in bound or "*" in bound:
        return
    recipes = [found for found, value in bound.items() if _makes_recipe(value)]
    hint = f"it has {', '.join(recipes)}" if recipes else "define recipe = hvdkit.Recipe(...)"
    raise RecipeError(f"{path} has no {name!r}; {hint}; name another with {Path(path).name}:NAME")


def _bound(node: ast.AST) -> Iterator[tuple[str, ast.AST | None]]:
    """Yield the names that code binds outside functions and classes, each with its value if it is plain to see."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield child.name, None
        elif isinstance(child, (ast.Import, ast.ImportFrom)):
            for alias in child.names:
                yield alias.asname or alias.name.partition(".")[0], None
        elif isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
            yield child.id, getattr(node, "value", None)
        else:
            yield from _bound(child)


def _makes_recipe(value: ast.AST | None) -> bool:
    """Say whether a value is ``Recipe(...)`` or ``recipe.replace(...)``."""
    called = value.func if isinstance(value, ast.Call) else None
    name = getattr(called, "attr", getattr(called, "id", ""))
    return name in ("Recipe", "replace")
