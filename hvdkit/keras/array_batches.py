"""This rank's batches for Keras on torch or JAX: a ``PyDataset``."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from hvdkit.keras_common.data.weights import needs_weights, sample_weights
from hvdkit.recipe.plan import MicroBatch, ShardPlan


class ArrayBatches(keras.utils.PyDataset):
    """Neutral arrays, one batch per index, in the order of the epoch."""

    def __init__(self, data: Any, plan: ShardPlan, rank: int) -> None:
        super().__init__()
        self._x, self._y = (np.asarray(part) for part in data)
        self.plan, self._rank = plan, rank
        self.hvdkit_labels = self._y
        self.hvdkit_steps = plan.steps
        self.hvdkit_weighted = needs_weights(plan)
        self.hvdkit_samples = plan.samples - plan.dropped
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        """Take the order of this epoch, counted from 0."""
        self._epoch, self._taken = epoch, False
        self._parts: list[MicroBatch] = list(self.plan.micro_batches(epoch, self._rank))

    def on_epoch_end(self) -> None:
        """Go on to the next epoch, if this one was taken to its end: ``fit`` also looks at a first batch alone."""
        if self._taken:
            self.set_epoch(self._epoch + 1)

    def __len__(self) -> int:
        return len(self._parts)

    def __getitem__(self, index: int) -> Any:
        part = self._parts[index]
        self._taken = self._taken or index == len(self._parts) - 1
        batch = (self._x[part.indices], self._y[part.indices])
        if not self.hvdkit_weighted:
            return batch
        return (*batch, sample_weights(part, self.plan))


def shard(data: Any, plan: ShardPlan, rank: int) -> ArrayBatches:
    """Return this rank's training batches."""
    return ArrayBatches(data, plan, rank)


def for_evaluation(data: Any, batch_size: int, size: int, rank: int) -> ArrayBatches:
    """Return this rank's part of validation data."""
    x, y = (np.asarray(part)[rank::size] for part in data)
    return ArrayBatches((x, y), ShardPlan(len(x), batch_size, shuffle=False), 0)
