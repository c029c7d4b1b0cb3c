"""Private names in hvdkit's source that are not its own, found without importing anything."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
# of hvdkit's own objects, or of its marks on those of others; the last two are in Python's documentation
NOT_FOREIGN = {
    "_batches",
    "_channel",
    "_compression",
    "_world",
    "_keras_channel",
    "_hvdkit_fit",
    "_hvdkit_fits",
    "_hvdkit_joins_rows",
    "_hvdkit_notes_batches",
    "_hvdkit_rates",
    "_hvdkit_reduced",
    "_hvdkit_reduction",
    "_hvdkit_watched",
    "_exit",
    "_fields",
}
_PRIVATE = re.compile(r"_[A-Za-z]\w*")
_PRIVATE_MODULE = re.compile(r"(\w+\.)*(src|_[A-Za-z]\w*)(\.\w+)*|tensorflow\.python(\.\w+)*")


def foreign_names() -> set[tuple[str, str]]:
    """Return every use as (file, name); names of modules are dotted."""
    trees = {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in (ROOT / "hvdkit").rglob("*.py")}
    own = {name for tree in trees.values() for name in _defined(tree)}
    return {(file, name) for file, tree in trees.items() for name in used_names(tree, own) if name not in NOT_FOREIGN}


def _defined(tree: ast.AST) -> Iterator[str]:
    """Yield what hvdkit's classes define, as methods, on the class or on ``self``."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_self(node.value):
            yield node.attr


def used_names(tree: ast.AST, own: set[str]) -> Iterator[str]:
    """Yield private names that a file uses, but those in ``own`` on ``self``, ``cls`` and ``super()``."""
    # a part of an f-string is no name
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            if node.attr == "src" or (
                _PRIVATE.fullmatch(node.attr) and not (_is_self(node.value) and node.attr in own)
            ):
                yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            if _PRIVATE.fullmatch(node.value) or ("." in node.value and _PRIVATE_MODULE.fullmatch(node.value)):
                yield node.value
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from _imported(node)


def _imported(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    module = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
    for alias in node.names:
        name = module + alias.name
        if _PRIVATE_MODULE.fullmatch(name) and not name.startswith("hvdkit."):
            yield name


def _is_self(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "super"
    return isinstance(node, ast.Name) and node.id in ("self", "cls")
