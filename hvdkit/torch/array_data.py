"""Neutral arrays as a map-style data set."""

from __future__ import annotations

import copy
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

    Attributes:
        tree: The arrays.
        targets: Those of a pair.
    """

    def __init__(self, data: Any) -> None:
        self._samples = samples_of(data)
        pair = isinstance(data, tuple) and len(data) == 2
        self.tree: Any = (map_tree(_input, data[0]), map_tree(_target, data[1])) if pair else of_arrays(_part, data)
        self.targets = map_tree(lambda part: part.tensor, self.tree[1]) if pair else None

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> Any:
        return of_arrays(lambda part: part[0], self.__getitems__([index]))

    def __getitems__(self, indices: list[int]) -> Any:
        return self.gather(torch.as_tensor(indices))

    def gather(self, places: torch.Tensor, *, pinned: bool = False) -> Any:
        """Return the samples at places (int64, where the data lie), in memory that a GPU can copy from if asked for."""
        return of_arrays(lambda part: part.take(places, pinned), self.tree)

    @property
    def nbytes(self) -> int:
        """The bytes of all arrays."""
        sizes: list[int] = []
        of_arrays(lambda part: sizes.append(part.tensor.nbytes), self.tree)
        return sum(sizes)

    def on(self, device: torch.device) -> ArrayDataset:
        """Return the same data on a device."""
        other = copy.copy(self)
        other.tree = of_arrays(lambda part: part.on(device), self.tree)
        return other


class _Rows:
    """One array, and how its rows come out."""

    def __init__(self, tensor: torch.Tensor, *, permuted: bool = False) -> None:
        self.tensor, self._permuted = tensor, permuted
        self.ndim = tensor.ndim

    def on(self, device: torch.device) -> _Rows:
        return _Rows(self.tensor.to(device), permuted=self._permuted)

    def take(self, places: torch.Tensor, pinned: bool) -> torch.Tensor:
        rows = None
        if pinned:
            rows = torch.empty((len(places), *self.tensor.shape[1:]), dtype=self.tensor.dtype, pin_memory=True)
        rows = torch.index_select(self.tensor, 0, places, out=rows)
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
