"""Neutral arrays as a map-style data set."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from hvdkit.errors import DataError
from hvdkit.recipe.trees import map_tree, of_arrays, samples_of
from hvdkit.torch.tensors import channels_first, from_array


class ArrayDataset(Dataset[Any]):
    """A tree of arrays of one length; NumPy images come out NCHW in channels_last strides.

    In a pair ``(inputs, targets)`` that goes for the inputs, and integer targets come out as int64. In other trees it
    goes for all images, and integers of one axis, such as labels, come out as int64.
    """

    def __init__(self, data: Any) -> None:
        self._samples = samples_of(data)
        pair = isinstance(data, tuple) and len(data) == 2
        self._tree: Any = (map_tree(_input, data[0]), map_tree(_target, data[1])) if pair else of_arrays(_part, data)
        self.targets = map_tree(lambda part: part.tensor, self._tree[1]) if pair else None

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> Any:
        return of_arrays(lambda part: part[0], self.__getitems__([index]))

    def __getitems__(self, indices: list[int]) -> Any:
        return of_arrays(lambda part: part.take(indices), self._tree)


class _Rows:
    """One array, and how its rows come out."""

    def __init__(self, tensor: torch.Tensor, *, permuted: bool = False) -> None:
        self.tensor, self._permuted = tensor, permuted
        self.ndim = tensor.ndim

    def take(self, indices: list[int]) -> torch.Tensor:
        rows = self.tensor[indices]
        return channels_first(rows) if self._permuted else rows


def _input(array: Any) -> _Rows:
    # tensors are laid out as torch wants them already
    return _Rows(_as_tensor(array), permuted=not isinstance(array, torch.Tensor))


def _target(array: Any) -> _Rows:
    tensor = _as_tensor(array)
    # int64 are the only integers that torch's losses take
    return _Rows(tensor if tensor.is_floating_point() or tensor.is_complex() else tensor.long())


def _part(array: Any) -> _Rows:
    """Take an array of a tree that does not say which are targets: integers of one axis are taken for labels."""
    return _target(array) if _as_tensor(array).ndim == 1 else _input(array)


def _as_tensor(array: Any) -> torch.Tensor:
    if isinstance(array, torch.Tensor):
        return array
    try:
        return from_array(array)
    except TypeError as error:
        raise DataError(f"data of dtype {np.asarray(array).dtype} cannot be made a tensor; give numbers") from error
