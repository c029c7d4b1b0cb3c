"""Trees of arrays: what data, inputs and targets are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from hvdkit.errors import DataError, RecipeError

# more arrays of one shape than this in a list are samples rather than inputs
_FEW = 4


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


def is_pair(tree: Any) -> bool:
    """Say whether a tree is ``(inputs, targets)``."""
    return isinstance(tree, (tuple, list)) and len(tree) == 2


def of_arrays(function: Callable[[Any], Any], data: Any) -> Any:
    """Map arrays as :func:`map_tree` does, of data: a tuple is always a tree there, also one of plain lists."""
    if not isinstance(data, tuple):
        return map_tree(function, data)
    parts = [map_tree(function, part) for part in data]
    return type(data)(*parts) if hasattr(data, "_fields") else tuple(parts)


def arrays_of(data: Any) -> list[tuple[str, Any]]:
    """Return the arrays of data with the text that leads to each, as in ``data[0]['image']``."""
    if not isinstance(data, tuple):
        return list(named_leaves(data, "data"))
    return [entry for key, part in enumerate(data) for entry in named_leaves(part, f"data[{key}]")]


def is_arrays(data: Any) -> bool:
    """Say whether data are an array, or a tuple, list or dict of arrays, rather than a data set of samples.

    Raises:
        RecipeError: It is a list that could be either.
    """
    if isinstance(data, list):
        return is_branch(data) and _is_list_of_arrays(data)
    if not isinstance(data, (tuple, dict)):
        return _is_array(data)
    return bool(data) and all(_is_array(array) or isinstance(array, (list, tuple)) for _, array in arrays_of(data))


def _is_array(leaf: Any) -> bool:
    return bool(getattr(leaf, "ndim", 0)) and hasattr(leaf, "__array__")


def _is_list_of_arrays(data: list[Any]) -> bool:
    """Tell a list of arrays ``[x, y]`` from a list of samples ``[(x0, y0), (x1, y1), ...]``."""
    if not all(_is_array(array) for _, array in arrays_of(data)):
        return False
    alike = len({str(_form(part)) for part in data}) == 1
    if alike and (len(data) > _FEW or is_branch(data[0])):
        raise RecipeError(
            f"a list of {len(data)} parts of one form may be arrays of all samples or single samples; give a tuple of "
            "arrays, or a data set with __getitem__ and __len__"
        )
    return True


def _form(tree: Any) -> Any:
    return map_tree(lambda array: (str(array.dtype), tuple(array.shape)), tree)


def samples_of(data: Any, or_else: str = "") -> int:
    """Return how many samples data have: an array, or a tuple, list or dict of arrays of one length.

    Args:
        data: The arrays; a tuple of two is ``(inputs, targets)``.
        or_else: What else could have been given, for the message.

    Raises:
        RecipeError: They are no arrays.
        DataError: Arrays differ in length.
    """
    if not is_arrays(data):
        raise RecipeError(f"data of class {type(data).__name__} cannot be sharded; give arrays (x, y){or_else}")
    if isinstance(data, tuple) and len(data) == 2:
        return _samples_of_pair(data)
    (first, array), *others = arrays_of(data)
    for name, other in others:
        if len(other) != len(array):
            raise DataError(f"{first} has {len(array)} samples but {name} has {len(other)}; give all arrays one length")
    return len(array)


def _samples_of_pair(data: Any) -> int:
    inputs, targets = (sorted({len(leaf) for leaf in leaves(part)}) for part in data)
    if len(inputs) == len(targets) == 1 and inputs != targets:
        raise DataError(f"{inputs[0]} samples but {targets[0]} labels; give one label per sample")
    if len({*inputs, *targets}) > 1:
        lengths = ", ".join(str(length) for length in sorted({*inputs, *targets}))
        raise DataError(f"the arrays of inputs and targets have {lengths} samples; give all of them one length")
    return inputs[0]
