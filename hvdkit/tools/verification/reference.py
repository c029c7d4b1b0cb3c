"""The reference: plain loops on one process, which replay the batches that the ranks have seen.

Nothing here uses hvdkit's reduction, loop, learning rates or metrics; only the recipe's model, loss and optimizer are
built by it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from hvdkit.recipe.declaration import Recipe
from hvdkit.recipe.trees import leaves, map_tree
from hvdkit.tools.verification.held_metrics import HeldMetrics
from hvdkit.tools.verification.layout import Layout, expected_rate
from hvdkit.tools.verification.rounding import Rounding
from hvdkit.tools.verification.storage import Arrays, Micro, axes_in_memory

if TYPE_CHECKING:
    from hvdkit.tools.verification.framework_view import View

Gradients = list[Any]


class Reference(ABC):
    """One process that computes what N processes should have.

    The model's statistics (BatchNorm's) are kept once for each rank, since they are each rank's own.

    Attributes:
        base: The learning rate of one process.
        sums: Loss and metrics of the epoch under way, as sums over samples and counts.
        held: The recipe's metrics that keep a state.
        rounding: Moves the weights while gradients are taken and metrics measured; None leaves them as they are.
        averages_by_divisors: Whether ranks' mean losses are averaged by what they divide by, rather than by samples.
    """

    averages_by_divisors: ClassVar[bool] = False

    def __init__(self, view: View, recipe: Recipe, model: Any, optimizer: Any, base: float) -> None:
        self.view, self.recipe, self.model, self.optimizer, self.base = view, recipe, model, optimizer, base
        self.sums: dict[str, tuple[float, float]] = {}
        self.rounding: Rounding | None = None
        self.held = HeldMetrics({})
        self._own: dict[int, Arrays] = {}

    def due_rates(self, layout: Layout, step: int) -> list[float]:
        """Return the rate that update ``step`` (from 0) should have, for each of the optimizer's groups."""
        return [expected_rate(self.recipe, self.base, layout, step)]

    def move_schedule(self, record: dict[str, float]) -> None:  # noqa: B027 - only torch has schedulers
        """Move a scheduler at the end of an epoch with these averaged metrics."""

    def prime(self, inputs: Any, targets: Any) -> None:  # noqa: B027 - most models are built when they are made
        """Build what is built by its first batch."""

    def update(self, ranks: Sequence[Sequence[Micro]], rate: float) -> None:
        """Do one update from the micro-batches of all ranks, summed in rank order."""
        sizes = {micro.file: self.size_of(micro) for micros in ranks for micro in micros}
        total_size = sum(sizes.values())
        total: Gradients | None = None
        for rank, micros in enumerate(ranks):
            self._take(rank)
            local: Gradients | None = None
            for micro in micros:
                weight = sizes[micro.file] * len(ranks) * len(micros) / total_size
                inputs, targets, draws = micro.load()
                self.view.set_draws(self.model, draws)
                with self._rounded():
                    gradients = self.gradients(inputs, targets, weight, sizes[micro.file])
                local = gradients if local is None else _add(local, gradients)
            assert local is not None
            share = _scale(_scale(local, 1.0 / len(micros)), 1.0 / len(ranks))
            total = share if total is None else _add(total, share)
            self._own[rank] = self.statistics()
        assert total is not None
        self.apply(total, rate)

    def size_of(self, micro: Micro) -> float:
        """Return what the mean loss of a micro-batch stands for: its samples, unless masks or weights count."""
        return micro.count

    def update_whole(self, ranks: Sequence[Sequence[Micro]], rate: float) -> None:
        """Do one update from one batch that holds the samples of all ranks."""
        self._take(0)
        inputs, targets = whole(ranks)
        with self._rounded():
            gradients = self.gradients(inputs, targets, 1.0, len(next(leaves(inputs))))
        self._own[0] = self.statistics()
        self.apply(gradients, rate)

    def probe(self, ranks: Sequence[Sequence[Micro]]) -> dict[str, Any] | str:
        """Return loss and metrics of all samples of an update, and the means of those of their parts.

        Both are of the same outputs. Where that cannot be done it is a word why.
        """
        inputs, targets = whole(ranks)
        samples = len(next(leaves(inputs)))
        cut = samples // 3 or 1
        if samples < 2:
            return "an update has one sample"
        try:
            outputs = self.outputs(inputs)
            if any(len(leaf) != samples for leaf in leaves(outputs)):
                return "the model's outputs are not one for each sample"
            joined, again = (self.measures_of(outputs, targets) for _ in range(2))
            parts = [(self.part_of(outputs, *part), rows(targets, *part)) for part in ((0, cut), (cut, samples))]
            measured = [self.measures_of(*part) for part in parts]
            sizes = [self.divisor(*part, count) for part, count in zip(parts, (cut, samples - cut), strict=True)]
        except (TypeError, ValueError, AttributeError, IndexError, KeyError, RuntimeError) as error:
            return f"the loss cannot be taken of parts of a batch: {' '.join(str(error).split())[:100]}"
        if again["loss"] != joined["loss"]:
            return "the loss of the same outputs is not the same twice"
        counts = [cut, samples - cut]
        means = {name: float(np.dot([part[name] for part in measured], counts) / samples) for name in joined}
        losses = [part["loss"] for part in measured]
        weighs = sizes != counts and sum(sizes) > 0
        return {
            "samples": samples,
            "joined": joined,
            "parts": means,
            "weighted": float(np.dot(losses, sizes) / sum(sizes)) if weighs else None,
            "averaged_by_samples": weighs and not self.averages_by_divisors,
            "scale": {name: max(abs(found[name]) for found in (joined, *measured)) for name in joined},
        }

    def load(self, parameters: Arrays, statistics: Arrays, size: int) -> None:
        """Start from given weights; every rank has the same statistics."""
        self.write(parameters)
        self.write(statistics)
        self._own = dict.fromkeys(range(size), statistics)

    def join_statistics(self) -> None:
        """Average the statistics of all ranks."""
        joined = filter(is_joined, self._own[0])
        mean = {name: _mean([own[name] for own in self._own.values()]) for name in joined}
        for rank, own in self._own.items():
            self._own[rank] = {**own, **{name: value for name, value in mean.items() if value is not None}}
        self._take(0)

    def end_epoch(self, validation: Iterable[tuple[Any, Any]] | None) -> dict[str, float]:
        """Average the statistics of all ranks; return the metrics of the epoch, and start them anew.

        Args:
            validation: Yields what is evaluated, in neutral arrays; the model evaluates it before the next comes.
        """
        self.join_statistics()
        record, self.sums = self._means(), {}
        if validation is not None:
            with self._rounded():
                for inputs, targets in validation:
                    self.evaluate(inputs, targets)
            record |= {f"val_{name}": value for name, value in self._means().items()}
            self.sums = {}
        return record

    def note(self, name: str, mean: float, count: float) -> None:
        """Add the mean over ``count`` samples."""
        total, number = self.sums.get(name, (0.0, 0.0))
        self.sums[name] = (total + mean * count, number + count)

    def own_statistics(self) -> Arrays:
        """Return the statistics of all ranks."""
        return {f"{rank}|{name}": value for rank, own in self._own.items() for name, value in own.items()}

    @contextmanager
    def _rounded(self) -> Iterator[None]:
        """Round the weights otherwise inside, if that is asked for."""
        if self.rounding is None:
            yield
            return
        kept = self.view.parameters(self.model)
        self.write({name: self.rounding.moved(value) for name, value in kept.items()})
        yield
        self.write(kept)

    def _means(self) -> dict[str, float]:
        return {name: total / count for name, (total, count) in self.sums.items()} | self.held.take_results()

    def _take(self, rank: int) -> None:
        if self._own.get(rank):
            self.write(self._own[rank])

    @abstractmethod
    def gradients(self, inputs: Any, targets: Any, weight: float, count: float) -> Gradients:
        """Return the gradients of ``weight`` times the mean loss, and note loss and metrics."""

    @abstractmethod
    def outputs(self, inputs: Any) -> Any:
        """Return what the model makes of NumPy inputs, without training."""

    @abstractmethod
    def measures_of(self, outputs: Any, targets: Any) -> dict[str, float]:
        """Return the loss of outputs and NumPy targets, without what layers add, and metrics that are functions."""

    def part_of(self, outputs: Any, start: int, stop: int) -> Any:
        """Return a range of what the model made."""
        return rows(outputs, start, stop)

    @abstractmethod
    def divisor(self, outputs: Any, targets: Any, count: int) -> float:
        """Return what the mean loss of a batch divides by: its samples, unless masks or weights are known to count."""

    @abstractmethod
    def apply(self, gradients: Gradients, rate: float) -> None:
        """Clip the gradients and update the weights."""

    @abstractmethod
    def evaluate(self, inputs: Any, targets: Any) -> None:
        """Note loss and metrics of neutral arrays, without training."""

    @abstractmethod
    def statistics(self) -> Arrays:
        """Return what is not trained but changes."""

    @abstractmethod
    def write(self, arrays: Arrays) -> None:
        """Assign parameters or statistics by name."""


_JOINED = ("running_mean", "running_var", "moving_mean", "moving_variance")


def is_joined(name: str) -> bool:
    """Say whether statistics of this name are joined over ranks, by their mean; others are each rank's own."""
    return name.split(" (")[0].split(":")[0].endswith(_JOINED)


def whole(ranks: Sequence[Sequence[Micro]]) -> tuple[Any, Any]:
    """Join the samples of all ranks into one batch, whose axes lie in memory as theirs do."""
    parts = [micro.load() for micros in ranks for micro in micros if micro.count]
    return _joined([part.inputs for part in parts]), _joined([part.targets for part in parts])


def rows(tree: Any, start: int, stop: int) -> Any:
    """Return a range of the samples of a tree of arrays."""
    return map_tree(lambda array: array[start:stop], tree)


def _joined(trees: list[Any]) -> Any:
    columns = zip(*(leaves(tree) for tree in trees), strict=True)
    joined = iter([_concatenated(column) for column in columns])
    return map_tree(lambda _: next(joined), trees[0])


def _concatenated(arrays: Sequence[Any]) -> Any:
    order = axes_in_memory(arrays[0])
    joined = np.concatenate([array.transpose(order) for array in arrays], axis=order.index(0))
    return joined.transpose(np.argsort(order))


def _add(left: Gradients, right: Gradients) -> Gradients:
    return [b if a is None else a if b is None else a + b for a, b in zip(left, right, strict=True)]


def _scale(gradients: Gradients, factor: float) -> Gradients:
    return gradients if factor == 1.0 else [None if g is None else g * factor for g in gradients]


def _mean(values: list[Any]) -> Any:
    """Return the mean of floating-point arrays in float64; None where it changes nothing."""
    if values[0].dtype.kind != "f" or all(np.array_equal(value, values[0]) for value in values):
        return None
    return np.mean([value.astype(np.float64) for value in values], axis=0).astype(values[0].dtype)
