"""This rank's batches for ``fit`` on TensorFlow: a ``tf.data.Dataset``, which never leaves the graph."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import tensorflow as tf

from hvdkit.errors import RecipeError
from hvdkit.job.world import World
from hvdkit.keras.fit_batches import (
    ClassWeight,
    Observe,
    as_batch,
    check_weights,
    class_weights,
    for_fit,
    has_weights,
    targets_of,
)
from hvdkit.keras.own_batches import OwnBatches
from hvdkit.keras_common.data.tf_datasets import OwnSamples, array_batches, as_tuples, in_blocks
from hvdkit.keras_common.data.weights import NOT_COUNTED, needs_weights, sample_weights, weight_type, with_weights
from hvdkit.recipe.plan import MicroBatch, ShardPlan
from hvdkit.recipe.trees import map_tree
from hvdkit.training.batches import Planned, Sharding
from hvdkit.training.evaluation_batches import Evaluation


class FitDataset(tf.data.Dataset):
    """Batches ``x``, ``(x, y)``, or ``(x, y, weight per sample)``; each iteration is one epoch.

    Attributes:
        samples: Training samples of an epoch over all ranks; None for a stream.
        targets: Those of all ranks where they are arrays; else None.
        weighted: Whether batches carry weights.
        observe: Never called: batches stay in the graph.
        class_weight: What samples of a class count for, in batches that carry weights.
        takes_class_weight: Whether the batches' weights can take those of classes up.
    """

    observe: Observe | None = None
    class_weight: ClassWeight = MappingProxyType({})
    takes_class_weight = False

    def __init__(self, dataset: Any, steps: int | None, planned: Planned | None = None, targets: Any = None) -> None:
        self._dataset, self._planned = dataset, planned
        self._steps, self.targets = steps, targets
        self.samples = None if planned is None else planned.samples
        self.dropped = 0 if planned is None else planned.dropped
        self.weighted = isinstance(dataset.element_spec, tuple) and len(dataset.element_spec) == 3
        super().__init__(dataset._variant_tensor)

    @property
    def steps(self) -> int:
        """Optimizer updates per epoch, the same on every rank.

        Raises:
            RecipeError: An epoch is the whole data set, whose length is not known.
        """
        if self._steps is None:
            raise RecipeError("the data set is of unknown length; give Recipe(steps_per_epoch=...)")
        return self._steps

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
        """Return inputs and targets of the first batch, or ``NO_TARGETS``, without taking it."""
        inputs, targets = as_batch(next(iter(self._dataset)), 0)
        return inputs, targets


class EvaluationDataset(tf.data.Dataset, Evaluation):
    """This rank's batches ``(x, y)``, each sample once, as Keras takes them."""

    def __init__(self, batches: Any, samples: int | None, targets: Any = None) -> None:
        self._batches = batches
        self.samples, self.targets = samples, targets
        super().__init__(batches._variant_tensor)

    def _inputs(self) -> list[Any]:
        return [self._batches]

    @property
    def element_spec(self) -> Any:
        """The types of a batch."""
        return self._batches.element_spec


def from_arrays(data: Any, plan: ShardPlan, rank: int, prefetch: int) -> FitDataset:
    """Return batches of neutral arrays, in hvdkit's own order whatever the number of processes."""
    check_weights(data, plan)
    planned = Planned(plan, rank)
    made: list[FitDataset] = []

    def weigh(part: MicroBatch) -> Any:
        weights = sample_weights(part, plan)
        if not made[0].class_weight:
            return weights
        labels = np.asarray(data[1])[part.indices]
        return weights * class_weights(labels, made[0].class_weight).astype(weights.dtype)

    weighs = needs_weights(plan)
    batches = array_batches(for_fit(data), planned.parts, weigh if weighs else None).prefetch(prefetch)
    made.append(FitDataset(_counting_epochs(batches, planned), plan.steps, planned, targets_of(data)))
    made[0].takes_class_weight = weighs and not has_weights(data)
    return made[0]


def from_blocks(data: Any, asked: Sharding, world: World) -> FitDataset:
    """Return batches of the user's own data set of unknown length, of which an epoch takes all.

    Raises:
        RecipeError: A rank could need weights where there are none.
    """
    exact, size, rank = asked.uneven == "exact", world.size, world.rank
    pair = isinstance(data.element_spec, tuple) and len(data.element_spec) in (2, 3)
    if exact and (not pair or asked.accumulate > 1):
        raise RecipeError(
            "the end of a data set of unknown length may leave a rank without a sample, which fit cannot weight "
            "without targets or over several passes; use uneven='drop' or 'pad'"
        )

    def share(*block: Any) -> Any:
        tree = block if len(block) > 1 else block[0]
        count = tf.shape(tf.nest.flatten(tree)[0])[0]
        padded = -(-count // size) * size
        # a rank that has no sample left repeats the first one
        places = tf.range(rank, padded if asked.uneven == "pad" else tf.maximum(count, rank + 1), size) % count
        rows = tf.nest.map_structure(lambda part: tf.gather(part, places), tree)
        if not exact:
            return rows
        kind = rows[2].dtype if len(rows) == 3 else weight_type()
        weight = tf.where(rank < count, tf.constant(1.0, kind), tf.constant(NOT_COUNTED, kind))
        return with_weights(rows, tf.fill(tf.shape(places), weight))

    batches = in_blocks(data, replace(asked, accumulate=1), world).map(share).prefetch(asked.prefetch)
    return FitDataset(batches, None)


def from_batches(batches: OwnBatches) -> FitDataset:
    """Return the batches of a ``Sequence`` with the shapes of the first; Keras 2 itself takes all for unknown."""

    def epoch() -> Iterator[Any]:
        for place in range(len(batches)):
            yield batches[place]
        batches.on_epoch_end()

    def signature(part: Any) -> tf.TensorSpec:
        return tf.TensorSpec((None, *part.shape[1:]), part.dtype)

    first = as_tuples(batches[0])
    dataset = tf.data.Dataset.from_generator(
        lambda: map(as_tuples, epoch()), output_signature=map_tree(signature, first)
    )
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(len(batches)))
    return FitDataset(dataset, batches.steps, batches)


def from_samples(own: OwnSamples, asked: Sharding) -> FitDataset:
    """Return batches of the user's own data set.

    Raises:
        RecipeError: A rank would need weights.
    """
    if own.plan is None:
        assert asked.steps_per_epoch is not None  # else from_blocks
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
