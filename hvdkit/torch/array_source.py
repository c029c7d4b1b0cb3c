"""This rank's batches of neutral arrays, gathered where they lie: in host memory or on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from hvdkit.errors import RecipeError
from hvdkit.recipe.plan import MicroBatch
from hvdkit.torch.array_data import ArrayDataset

# of the memory of a GPU that is free
_SHARE = 0.25


class ArraySource:
    """Samples of arrays.

    Attributes:
        dataset: What the samples are taken from, in host memory.
        targets: All targets where the data are pairs; else None.
    """

    drawn = True

    def __init__(self, dataset: ArrayDataset, device: torch.device | None, *, pinned: bool) -> None:
        self.dataset, self.targets = dataset, dataset.targets
        self._device = device
        self._rows = dataset if device is None else dataset.on(device)
        self._pinned = pinned and device is None

    def load(self, parts: list[MicroBatch]) -> Iterator[Any]:
        """Yield the samples of each micro-batch of an epoch; the order of all of them goes to the GPU at once."""
        if not parts:
            return
        order = torch.from_numpy(np.concatenate([part.indices for part in parts]))
        if self._device is not None:
            order = order.to(self._device)
        for places in order.split([len(part.indices) for part in parts]):
            yield self._rows.gather(places, pinned=self._pinned)


def device_for(dataset: ArrayDataset, on_device: bool | str) -> torch.device | None:
    """Return the GPU on which arrays are to be held; None for host memory.

    Raises:
        RecipeError: They are wanted on a GPU, but there is none, or they do not fit.
    """
    if on_device is False:
        return None
    if not torch.cuda.is_available():
        if on_device is True:
            raise RecipeError("Shard.on_device is True but there is no GPU; use 'auto'")
        return None
    free, _ = torch.cuda.mem_get_info()
    if on_device is True and dataset.nbytes > free:
        raise RecipeError(
            f"Shard.on_device is True but the data are {dataset.nbytes} bytes and {free} are free on the GPU; "
            "use 'auto' or False"
        )
    fits = on_device is True or dataset.nbytes <= _SHARE * free
    return torch.device("cuda", torch.cuda.current_device()) if fits else None
