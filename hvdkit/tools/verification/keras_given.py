"""What one process reads of data for Keras that hvdkit draws no samples from by their places.

Those are ``tf.data`` sets and the batches of a ``PyDataset``. They are read twice, made anew each time, with other
random numbers: what is not the same twice is random, and is not compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from hvdkit.job import random_streams
from hvdkit.keras_common.compat import indexed_dataset, keras
from hvdkit.recipe.declaration import Recipe
from hvdkit.recipe.trees import is_arrays, map_tree, samples_of
from hvdkit.tools.verification import keras_data
from hvdkit.tools.verification.given import ARRAYS, BATCHES, ENDLESS, SHARED, UNKNOWN, Given, split, steady
from hvdkit.tools.verification.keras_measures import Weighted
from hvdkit.tools.verification.layout import Layout, global_batch
from hvdkit.tools.verification.storage import sample_digests

_BUFFER = 10
"""hvdkit shuffles a stream in a buffer of so many batches on each rank."""

_MANY = 10_000
"""Samples at most that are read of a set that shuffles itself, of which a part is another every time."""

_SEED_OF_EPOCHS = 1_000_003
"""At the end of an epoch, hvdkit seeds what a ``PyDataset`` draws by the recipe's seed times this, plus the epoch."""


def describe(data: Any) -> Given:
    """Say what data for Keras are."""
    if is_arrays(data):
        return Given(ARRAYS, samples_of(data))
    if keras_data.is_tf_dataset(data):
        samples = keras_data.samples_in(data)
        return Given(ENDLESS if samples is None else SHARED, samples)
    if isinstance(data, indexed_dataset()):
        return Given(BATCHES, keras_data.samples_in(data))
    return Given(UNKNOWN)


def sides(data: Any) -> tuple[Any, Any]:
    """Return inputs and targets of what the data give, with the weights of samples if they bring some."""
    inputs, targets, *weights = data
    return inputs, Weighted(targets, weights_of(weights[0])) if weights else targets


def weights_of(weights: Any) -> Any:
    """Return weights of samples in the precision of the library."""
    return map_tree(lambda part: part.astype(keras().backend.floatx()), weights)


class Reading:
    """Reads the data of a run.

    Args:
        view: Of the framework.
        anew: Makes them anew; ``whole=True`` without taking a part of them.
        found: What they are.
        recipe: Whose data they are.
        layout: Of the run.
        train: Whether they are trained on.
    """

    def __init__(
        self, view: Any, anew: Callable[..., Any], found: Given, recipe: Recipe, layout: Layout, train: bool
    ) -> None:
        self._view, self._anew, self._found, self._recipe = view, anew, found, recipe
        self._layout, self._train, self._whole = layout, train, False

    def facts(self) -> dict[str, Any]:
        """Return as ``due`` digests of all samples, of a ``PyDataset`` by epoch and batch; and what is random."""
        self._whole = keras_data.is_shuffled(self._anew())
        if self._whole and self._found.kind == ENDLESS and self._train:
            return {"reason": "their number is not known, and they shuffle themselves"}
        if self._whole and (keras_data.samples_in(self._anew(whole=True)) or 0) > _MANY:
            return {"reason": f"they shuffle themselves, and more than {_MANY} are not read"}
        first, again = (list(self._epochs(number)) for number in (0, 1))
        samples, others = ([sample for epoch in read for batch in epoch for sample in batch] for read in (first, again))
        by_batch = self._found.kind == BATCHES
        random = _random(samples, others)
        return {
            "due": first if by_batch else samples,
            "random": sorted(random),
            "ordered": [steady(each, random) for each in samples] == [steady(each, random) for each in others],
        }

    def _epochs(self, number: int) -> Iterator[list[list[str]]]:
        """Yield the batches of each epoch, of sets of samples those of one."""
        # what is drawn while data are made is as in the ranks, what they draw afterwards is not
        keras().utils.set_random_seed(self._recipe.seed + number)
        random_streams.seed_python_and_numpy(self._recipe.seed)
        # the first of those that are shuffled are others every time
        data = keras_data.part(self._anew(whole=True), None, self._layout.dtype) if self._whole else self._anew()
        random_streams.seed_python_and_numpy(number)
        if self._found.kind != BATCHES:
            yield [self._digests(batch) for batch in self._limited(data).batch(1)]
            return
        for epoch in range(self._layout.epochs):
            yield [self._digests(data[place]) for place in range(len(data))]
            with random_streams.one_random_state(self._recipe.seed * _SEED_OF_EPOCHS + epoch):
                data.on_epoch_end()

    def _limited(self, data: Any) -> Any:
        """Return as much of a data set without an end as the ranks may have read of it."""
        if self._found.kind != ENDLESS or not self._train:
            return data
        taken = self._layout.updates * global_batch(self._recipe, self._layout.size)
        ahead = _BUFFER * self._recipe.batch_size * self._layout.size
        return data.repeat().take(taken + (ahead if self._recipe.shard and self._recipe.shard.shuffle else 0))

    def _digests(self, batch: Any) -> list[str]:
        inputs, targets = sides(map_tree(self._view.array, batch))
        return sample_digests(inputs, targets)


def _random(samples: list[str], others: list[str]) -> set[int]:
    """Return the parts of the samples that are not the same when they are read again."""
    columns, again = (map(Counter, zip(*map(split, read), strict=True)) for read in (samples, others))
    return {place for place, (first, second) in enumerate(zip(columns, again, strict=True)) if first != second}
