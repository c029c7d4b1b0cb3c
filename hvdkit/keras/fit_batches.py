"""This rank's batches as Keras's ``fit`` takes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from hvdkit.keras_common.compat import indexed_dataset
from hvdkit.keras_common.data.weights import needs_weights, sample_weights
from hvdkit.recipe.plan import ShardPlan
from hvdkit.recipe.trees import map_tree
from hvdkit.training.batches import Batch, Batches, Planned

if TYPE_CHECKING:
    from hvdkit.recipe.plan import Indices

_Dataset: Any = indexed_dataset()
Observe = Callable[[Batch], None]


class FitBatches(Batches, Protocol):
    """What ``fit`` and the trainer around it take.

    Attributes:
        weighted: Whether batches carry weights.
        observe: Called with each batch that ``fit`` takes for the first time, where that can be seen.
    """

    weighted: bool
    observe: Observe | None

    def first(self) -> tuple[Any, Any]:
        """Return inputs and targets of the first batch, without taking it."""


class ArrayBatches(Planned, _Dataset):
    """Neutral arrays ``(x, y)``, or trees of them, one batch per index, in the order of the epoch."""

    def __init__(self, data: Any, plan: ShardPlan, rank: int) -> None:
        _Dataset.__init__(self)
        Planned.__init__(self, plan, rank)
        self._inputs, self.targets = (map_tree(np.asarray, side) for side in data)
        self.weighted = needs_weights(plan)
        self.observe: Observe | None = None
        self._begin()

    def set_epoch(self, epoch: int) -> None:
        """Take the order of this epoch, counted from 0."""
        if epoch != self.epoch:  # of this one, ``fit`` may have looked at a batch already
            Planned.set_epoch(self, epoch)
            self._begin()

    def _begin(self) -> None:
        self._parts = self.parts()
        self._taken = 0

    def on_epoch_end(self) -> None:
        """Go on to the next epoch, if this one was taken to its end: ``fit`` also looks at a first batch alone."""
        if self._taken == len(self):
            self.set_epoch(self.epoch + 1)

    def first(self) -> tuple[Any, Any]:
        """Return inputs and targets of the first batch, without taking it."""
        return self._rows(self._parts[0].indices)

    def __getitem__(self, index: int) -> Any:
        """Return inputs, targets and, if there are any, weights."""
        part = self._parts[index]
        inputs, targets = self._rows(part.indices)
        if index >= self._taken:
            self._taken = index + 1
            if self.observe is not None:
                place = (self.epoch, index, part.indices)
                self.observe(Batch(inputs, targets, part.count, part.weight, part.last, *place))
        return (inputs, targets, sample_weights(part, self.plan)) if self.weighted else (inputs, targets)

    def _rows(self, indices: Indices) -> tuple[Any, Any]:
        inputs, targets = (map_tree(lambda part: part[indices], side) for side in (self._inputs, self.targets))
        return inputs, targets
