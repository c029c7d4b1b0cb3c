"""This rank's batches as Keras's ``fit`` takes them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hvdkit.errors import RecipeError
from hvdkit.keras_common.compat import indexed_dataset
from hvdkit.keras_common.data.weights import needs_weights, sample_weights, with_weights
from hvdkit.recipe.plan import ShardPlan
from hvdkit.recipe.trees import of_arrays
from hvdkit.training.batch import NO_TARGETS
from hvdkit.training.batches import Batch, Batches, Planned, Sharding

if TYPE_CHECKING:
    from hvdkit.recipe.plan import Indices

_Dataset: Any = indexed_dataset()
Observe = Callable[[Batch], None]
ClassWeight = Mapping[int, float]


class FitBatches(Batches, Protocol):
    """What ``fit`` and the trainer around it take.

    Attributes:
        weighted: Whether batches carry weights.
        observe: Called with each batch that ``fit`` takes for the first time, where that can be seen.
        class_weight: What samples of a class count for, in batches that carry weights.
        takes_class_weight: Whether the batches' weights can take those of classes up.
    """

    weighted: bool
    observe: Observe | None
    class_weight: ClassWeight
    takes_class_weight: bool

    def first(self) -> tuple[Any, Any]:
        """Return inputs and targets of the first batch, or ``NO_TARGETS``, without taking it."""


def check_fit_form(data: Any) -> None:
    """Check that ``fit`` can tell what arrays are: it takes a tuple for inputs, targets and weights of samples.

    Raises:
        RecipeError: It is a longer or shorter tuple.
    """
    if isinstance(data, tuple) and len(data) not in (2, 3):
        raise RecipeError(
            f"Keras takes a tuple for (x, y) or (x, y, weights), but this one has {len(data)} parts; for several "
            "inputs give ((x1, x2), y) or a dict"
        )


def for_fit(tree: Any) -> Any:
    """Return a batch as ``fit`` takes it: a list is several inputs."""
    return (tuple(tree),) if isinstance(tree, list) else tree


def as_batch(tree: Any, count: int, **place: Any) -> Batch:
    """Return a batch of what ``fit`` takes: weights of samples are left out, and the rest may have no targets."""
    if isinstance(tree, tuple) and len(tree) == 1:
        return Batch(tree[0], NO_TARGETS, count, **place)
    return Batch.of(tree[:2] if isinstance(tree, tuple) else tree, count, **place)


def has_weights(data: Any) -> bool:
    """Say whether data bring weights of their samples."""
    return isinstance(data, tuple) and len(data) == 3


def targets_of(data: Any) -> Any:
    """Return the targets among arrays, None if there are none."""
    return data[1] if isinstance(data, tuple) else None


def check_weights(data: Any, plan: ShardPlan) -> None:
    """Check that batches can carry weights where they must.

    Raises:
        RecipeError: A rank would need weights, but there are no targets for a loss to weigh.
    """
    if needs_weights(plan) and not isinstance(data, tuple):
        raise RecipeError(
            f"{plan.samples} samples leave a rank without a sample or with unequal passes at the end of an epoch, "
            "which fit cannot weight where there are no targets; use uneven='drop' or 'pad'"
        )


def class_weights(targets: Any, weights: ClassWeight) -> NDArray[np.float64]:
    """Return what each sample's class counts for, 1 where nothing is said; labels may be whole numbers or one-hot."""
    labels = np.asarray(targets)
    labels = labels.argmax(-1) if labels.ndim > 1 and labels.shape[-1] > 1 else labels.reshape(len(labels))
    return np.array([weights.get(int(label), 1.0) for label in labels], np.float64)


def is_sharded(data: Any) -> bool:
    """Say whether data come from hvdkit's own ``shard``."""
    return hasattr(data, "observe") and hasattr(data, "weighted")


class ArrayBatches(Planned, _Dataset):
    """Neutral arrays, one batch per index, in the order of the epoch."""

    def __init__(self, data: Any, plan: ShardPlan, rank: int) -> None:
        _Dataset.__init__(self)
        Planned.__init__(self, plan, rank)
        check_weights(data, plan)
        self._tree = of_arrays(np.asarray, data)
        self.targets = targets_of(self._tree)
        self._weighs = needs_weights(plan)
        self.weighted = self._weighs or has_weights(data)
        self.takes_class_weight = self._weighs and not has_weights(data)
        self.observe: Observe | None = None
        self.class_weight: ClassWeight = {}
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
        inputs, targets = as_batch(self._rows(self._parts[0].indices), 0)
        return inputs, targets

    def __getitem__(self, index: int) -> Any:
        """Return inputs and, if there are any, targets and weights."""
        part = self._parts[index]
        rows = self._rows(part.indices)
        if index >= self._taken:
            self._taken = index + 1
            if self.observe is not None:
                place = {"epoch": self.epoch, "number": index, "indices": part.indices}
                self.observe(as_batch(rows, part.count, weight=part.weight, last=part.last, **place))
        if not self._weighs:
            return rows
        weights = sample_weights(part, self.plan)
        if self.class_weight:
            weights = weights * class_weights(rows[1], self.class_weight).astype(weights.dtype)
        return with_weights(rows, weights)

    def _rows(self, indices: Indices) -> Any:
        return for_fit(of_arrays(operator.itemgetter(indices), self._tree))


def refuse_loading(asked: Sharding) -> None:
    """Refuse what Keras on torch and JAX does not do.

    Raises:
        RecipeError: Workers, prefetching or pinned memory are asked for.
    """
    if asked.workers or asked.pin_memory is True or asked.prefetch != 2:
        raise RecipeError(
            "Shard.workers, prefetch and pin_memory are not available in Keras on torch or JAX; leave them out"
        )
