"""Trees of arrays: what inputs and targets are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from hvdkit.errors import DataError, RecipeError


def is_branch(tree: Any) -> bool:
    """Say whether this is a tuple or list with an array or a branch in it, or a dict; a list of numbers is an array."""
    if isinstance(tree, (tuple, list)):
        return any(is_branch(part) or getattr(part, "ndim", 0) > 0 for part in tree)
    return isinstance(tree, dict)


def map_tree(function: Callable[[Any], Any], tree: Any) -> Any:
    """Return a tree of the same form, with the function's result in place of each array."""
    if not is_branch(tree):
        return function(tree)
    if isinstance(tree, dict):
        return {name: map_tree(function, part) for name, part in tree.items()}
    parts = [map_tree(function, part) for part in tree]
    return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)


def leaves(tree: Any) -> Iterator[Any]:
    """Yield the arrays of a tree."""
    if not is_branch(tree):
        yield tree
        return
    for part in tree.values() if isinstance(tree, dict) else tree:
        yield from leaves(part)


def named_leaves(tree: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the arrays of a tree with the text that leads to each of them, as in ``x['image'][0]``."""
    if not is_branch(tree):
        yield name, tree
        return
    for key, part in tree.items() if isinstance(tree, dict) else enumerate(tree):
        yield from named_leaves(part, f"{name}[{key!r}]")


def samples_of(data: Any, or_else: str = "") -> int:
    """Return how many samples a pair ``(inputs, targets)`` of trees of arrays has.

    Args:
        data: The pair.
        or_else: What else could have been given, for the message.

    Raises:
        RecipeError: It is not a pair.
        DataError: Arrays differ in length.
    """
    if not isinstance(data, tuple) or len(data) != 2:
        raise RecipeError(f"data of class {type(data).__name__} cannot be sharded; give arrays (x, y){or_else}")
    inputs, targets = (sorted({len(leaf) for leaf in leaves(part)}) for part in data)
    if len(inputs) == len(targets) == 1 and inputs != targets:
        raise DataError(f"{inputs[0]} samples but {targets[0]} labels; give one label per sample")
    if len({*inputs, *targets}) > 1:
        lengths = ", ".join(str(length) for length in sorted({*inputs, *targets}))
        raise DataError(f"the arrays of inputs and targets have {lengths} samples; give all of them one length")
    return inputs[0]
