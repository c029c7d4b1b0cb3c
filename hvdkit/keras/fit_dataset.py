"""This rank's batches for ``fit`` on TensorFlow: a ``tf.data.Dataset``, which never leaves the graph."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hvdkit.errors import RecipeError
from hvdkit.keras.fit_batches import Observe
from hvdkit.keras_common.data.tf_datasets import OwnSamples, array_batches
from hvdkit.keras_common.data.weights import needs_weights, sample_weights
from hvdkit.recipe.plan import ShardPlan
from hvdkit.training.batches import Planned, Sharding


class FitDataset(tf.data.Dataset):
    """Batches ``(x, y)``, or ``(x, y, weight per sample)``; each iteration is one epoch.

    Attributes:
        samples: Training samples of an epoch over all ranks; None for a stream.
        targets: Those of all ranks where they are arrays; else None.
        weighted: Whether batches carry weights.
        observe: Never called: batches stay in the graph.
    """

    observe: Observe | None = None

    def __init__(self, dataset: Any, steps: int, planned: Planned | None = None, targets: Any = None) -> None:
        self._dataset, self._planned = dataset, planned
        self.steps, self.targets = steps, targets
        self.samples = None if planned is None else planned.samples
        self.dropped = 0 if planned is None else planned.dropped
        self.weighted = len(dataset.element_spec) == 3
        super().__init__(dataset._variant_tensor)

    def _inputs(self) -> list[Any]:
        return [self._dataset]

    @property
    def element_spec(self) -> Any:
        """The types of a batch."""
        return self._dataset.element_spec

    def set_epoch(self, epoch: int) -> None:
        """Take the order of this epoch, counted from 0, when iteration starts again; a stream has none to repeat."""
        if self._planned is not None:
            self._planned.set_epoch(epoch)

    def first(self) -> tuple[Any, Any]:
        """Return inputs and targets of the first batch, without taking it."""
        inputs, targets, *_ = next(iter(self._dataset))
        return inputs, targets


def from_arrays(data: Any, plan: ShardPlan, rank: int, prefetch: int) -> FitDataset:
    """Return batches of neutral arrays, in hvdkit's own order whatever the number of processes."""
    planned = Planned(plan, rank)
    weigh = (lambda part: sample_weights(part, plan)) if needs_weights(plan) else None
    batches = array_batches(data, planned.parts, weigh).prefetch(prefetch)
    return FitDataset(_counting_epochs(batches, planned), plan.steps, planned, data[1])


def from_samples(own: OwnSamples, asked: Sharding) -> FitDataset:
    """Return batches of the user's own data set.

    Raises:
        RecipeError: A rank would need weights.
    """
    if own.plan is None:
        assert asked.steps_per_epoch is not None  # own_samples refuses a stream without
        return FitDataset(own.endless(asked.batch_size).prefetch(asked.prefetch), asked.steps_per_epoch)
    if needs_weights(own.plan):
        raise RecipeError(
            f"{own.plan.samples} samples leave a rank without a sample or with unequal passes at the end of "
            "an epoch, which fit cannot weight in a tf.data set; use uneven='drop' or 'pad'"
        )
    planned = Planned(own.plan, own.rank)
    batches = own.in_parts(planned.parts()).prefetch(asked.prefetch)
    return FitDataset(_counting_epochs(batches, planned), own.plan.steps, planned)


def _counting_epochs(batches: Any, planned: Planned) -> Any:
    """Go on to the next epoch when the last batch is taken: ``fit`` also looks at a first batch and starts again."""
    last = len(planned) - 1

    def note(index: Any) -> Any:
        if index == last:
            planned.set_epoch(planned.epoch + 1)
        return index

    def taken(index: Any, batch: Any) -> Any:
        with tf.control_dependencies([tf.numpy_function(note, [index], tf.int64)]):
            return tf.nest.map_structure(tf.identity, batch)

    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    return batches.enumerate().map(taken).with_options(options)
