"""Joins what ranks computed on their parts of the data, in the order of the data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hvdkit.errors import DataError, HvdkitError
from hvdkit.job import world as worlds
from hvdkit.job.arrays import on_host
from hvdkit.job.collective import on_all_ranks
from hvdkit.job.world import World
from hvdkit.recipe.trees import is_branch, leaves, map_tree, named_leaves


@dataclass(frozen=True)
class _Rows:
    """An array but for its length."""

    dtype: str
    shape: tuple[int, ...]
    ndim: ClassVar[int] = 1  # for ``is_branch``


@on_all_ranks
def gather(predictions: Any) -> Any:
    """Return what all ranks computed on their batches of ``shard(train=False)``, in the order of the data.

    Args:
        predictions: One row for each of this rank's samples, joined over its batches: an array or tensor of shape
            ``(n, ...)``, or a tree (tuple, list, dict) of them. A rank that has no batch gives None or an empty list.

    Returns:
        The same tree of NumPy arrays with one row for each sample of all ranks, on every rank; bfloat16 comes as
        float32.

    Raises:
        DataError: Lengths are not those of ``shard(train=False)``, shapes or dtypes differ between ranks, or a list may
            hold batches as well as outputs; on every rank.
    """
    world = worlds.current()
    held = None if _is_nothing(predictions) else map_tree(lambda leaf: np.asarray(on_host(leaf)), predictions)
    found = _facts(held)
    gathered = world.engine.allgather_object(found)
    for other in gathered:
        if isinstance(other, HvdkitError):
            raise other
    rows = _common_rows(gathered)
    lengths = [length for length, _ in gathered]
    _check_lengths(lengths)
    own = dict(named_leaves(held, "predictions")) if held is not None else {}
    joined = iter([_join(world, own.get(name), entry, lengths) for name, entry in named_leaves(rows, "predictions")])
    return map_tree(lambda _: next(joined), rows)


def _is_nothing(predictions: Any) -> bool:
    return predictions is None or (isinstance(predictions, (list, tuple, dict)) and not predictions)


def _facts(held: Any) -> tuple[int, Any] | HvdkitError:
    """Return the number of rows and their kinds, or what is wrong with them."""
    if held is None:
        return 0, None
    arrays = list(leaves(held))
    if any(array.ndim == 0 or array.dtype.hasobject for array in arrays):
        return DataError("gather needs an array of numbers with a row for each sample, or a tree of such arrays")
    if any(_may_be_batches(part) for part in _lists(held)):
        return DataError(
            "gather got a list whose entries may be batches or outputs; join batches first (concatenate), and give "
            "several outputs as a tuple"
        )
    lengths = sorted({len(array) for array in arrays})
    if len(lengths) > 1:
        return DataError(f"gather got arrays of {lengths} rows; give each of them one row for each sample")
    return lengths[0], map_tree(lambda array: _Rows(str(array.dtype), array.shape[1:]), held)


def _lists(tree: Any) -> Iterator[list[Any]]:
    if not is_branch(tree):
        return
    if isinstance(tree, list):
        yield tree
    for part in tree.values() if isinstance(tree, dict) else tree:
        yield from _lists(part)


def _may_be_batches(entries: list[Any]) -> bool:
    forms = [map_tree(lambda array: _Rows(str(array.dtype), array.shape[1:]), entry) for entry in entries]
    return all(form == forms[0] for form in forms)


def _common_rows(gathered: list[tuple[int, Any]]) -> Any:
    """Return the kinds of rows, in the order of the first rank that has any."""
    first = next((rank for rank, (length, _) in enumerate(gathered) if length), None)
    if first is None:
        raise DataError("gather got no predictions on any rank; there is nothing to join")
    expected = gathered[first][1]
    names = dict(named_leaves(expected, "predictions"))
    for rank, (length, rows) in enumerate(gathered):
        if not length:
            continue
        others = dict(named_leaves(rows, "predictions"))
        for name in [*names, *others]:
            if names.get(name) != others.get(name):
                mine, other = (_text(entries.get(name)) for entries in (names, others))
                raise DataError(f"gather: {name} is {mine} on rank {first} but {other} on rank {rank}; make them alike")
    return expected


def _text(rows: _Rows | None) -> str:
    return "missing" if rows is None else f"{rows.dtype} ({', '.join(['n', *map(str, rows.shape)])})"


def _check_lengths(lengths: list[int]) -> None:
    total, size = sum(lengths), len(lengths)
    right = [len(range(rank, total, size)) for rank in range(size)]
    if lengths != right:
        raise DataError(
            f"gather: ranks have {lengths} predictions, but shard(train=False) deals {total} samples out as {right}; "
            "give one row for each sample of all its batches"
        )


def _join(world: World, own: NDArray[Any] | None, rows: _Rows, lengths: list[int]) -> NDArray[Any]:
    mine = np.zeros((0, *rows.shape), rows.dtype) if own is None or not lengths[world.rank] else own
    parts = world.allgather(mine)
    joined, ends = np.empty_like(parts), np.cumsum(lengths)
    for rank, end in enumerate(ends):
        joined[rank :: len(lengths)] = parts[end - lengths[rank] : end]
    return joined
