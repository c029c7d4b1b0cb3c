"""The reference: plain loops on one process, which replay the batches that the ranks have seen.

Nothing here uses hvdkit's reduction, loop, learning rates or metrics; only the recipe's model, loss and optimizer are
built by it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from hvdkit.recipe.declaration import Recipe
from hvdkit.tools.verification.storage import Arrays, Micro, axes_in_memory

Gradients = list[Any]


class Reference(ABC):
    """One process that computes what N processes should have.

    The model's statistics (BatchNorm's) are kept once for each rank, since they are each rank's own.

    Attributes:
        base: The learning rate of one process.
        sums: Loss and metrics of the epoch under way, as sums over samples and counts.
    """

    def __init__(self, recipe: Recipe, model: Any, optimizer: Any, base: float) -> None:
        self.recipe, self.model, self.optimizer, self.base = recipe, model, optimizer, base
        self.sums: dict[str, tuple[float, float]] = {}
        self._own: dict[int, Arrays] = {}

    def prime(self, x: Any) -> None:  # noqa: B027 - most models are built when they are made
        """Build what is built by its first batch."""

    def update(self, ranks: Sequence[Sequence[Micro]], rate: float) -> None:
        """Do one update from the micro-batches of all ranks, summed in rank order."""
        samples = sum(micro.count for micros in ranks for micro in micros)
        total: Gradients | None = None
        for rank, micros in enumerate(ranks):
            self._take(rank)
            local: Gradients | None = None
            for micro in micros:
                weight = micro.count * len(ranks) * len(micros) / samples
                gradients = self.gradients(micro.arrays(), weight, micro.count)
                local = gradients if local is None else _add(local, gradients)
            assert local is not None
            share = _scale(_scale(local, 1.0 / len(micros)), 1.0 / len(ranks))
            total = share if total is None else _add(total, share)
            self._own[rank] = self.statistics()
        assert total is not None
        self.apply(total, rate)

    def update_whole(self, arrays: Arrays, rate: float) -> None:
        """Do one update from one batch that holds the samples of all ranks."""
        self._take(0)
        gradients = self.gradients(arrays, 1.0, len(arrays["x"]))
        self._own[0] = self.statistics()
        self.apply(gradients, rate)

    def load(self, parameters: Arrays, statistics: Arrays, size: int) -> None:
        """Start from given weights; every rank has the same statistics."""
        self.write(parameters)
        self.write(statistics)
        self._own = dict.fromkeys(range(size), statistics)

    def end_epoch(self, validation: Any) -> dict[str, float]:
        """Average the statistics of all ranks; return the metrics of the epoch, and start them anew."""
        first = self._own[0]
        mean = {name: _mean([own[name] for own in self._own.values()]) for name in first}
        for rank, own in self._own.items():
            self._own[rank] = {name: own[name] if mean[name] is None else mean[name] for name in own}
        self._take(0)
        record, self.sums = self._means(), {}
        if validation is not None:
            self.evaluate(*validation)
            record |= {f"val_{name}": value for name, value in self._means().items()}
            self.sums = {}
        return record

    def note(self, name: str, mean: float, count: int) -> None:
        """Add the mean over ``count`` samples."""
        total, number = self.sums.get(name, (0.0, 0.0))
        self.sums[name] = (total + mean * count, number + count)

    def own_statistics(self) -> Arrays:
        """Return the statistics of all ranks."""
        return {f"{rank}|{name}": value for rank, own in self._own.items() for name, value in own.items()}

    def _means(self) -> dict[str, float]:
        return {name: total / count for name, (total, count) in self.sums.items()}

    def _take(self, rank: int) -> None:
        if self._own.get(rank):
            self.write(self._own[rank])

    @abstractmethod
    def gradients(self, arrays: Arrays, weight: float, count: int) -> Gradients:
        """Return the gradients of ``weight`` times the mean loss, and note loss and metrics."""

    @abstractmethod
    def apply(self, gradients: Gradients, rate: float) -> None:
        """Clip the gradients and update the weights."""

    @abstractmethod
    def evaluate(self, x: Any, y: Any) -> None:
        """Note loss and metrics of neutral arrays, without training."""

    @abstractmethod
    def statistics(self) -> Arrays:
        """Return what is not trained but changes."""

    @abstractmethod
    def write(self, arrays: Arrays) -> None:
        """Assign parameters or statistics by name."""


def whole(ranks: Sequence[Sequence[Micro]]) -> Arrays:
    """Join the samples of all ranks into one batch, whose axes lie in memory as theirs do."""
    parts = [micro.arrays() for micros in ranks for micro in micros if micro.count]
    order = axes_in_memory(parts[0]["x"])
    joined = np.concatenate([part["x"].transpose(order) for part in parts], axis=order.index(0))
    return {"x": joined.transpose(np.argsort(order)), "y": np.concatenate([part["y"] for part in parts])}


def _add(left: Gradients, right: Gradients) -> Gradients:
    return [b if a is None else a if b is None else a + b for a, b in zip(left, right, strict=True)]


def _scale(gradients: Gradients, factor: float) -> Gradients:
    return gradients if factor == 1.0 else [None if g is None else g * factor for g in gradients]


def _mean(values: list[Any]) -> Any:
    """Return the mean of floating-point arrays in float64; None where it changes nothing."""
    if values[0].dtype.kind != "f" or all(np.array_equal(value, values[0]) for value in values):
        return None
    return np.mean([value.astype(np.float64) for value in values], axis=0).astype(values[0].dtype)
