"""Data for Keras that are no pair of arrays: with weights of samples, or ``tf.data`` sets."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from hvdkit.keras_common.compat import indexed_dataset, library
from hvdkit.recipe.trees import is_arrays, is_branch, leaves, map_tree, of_arrays, samples_of
from hvdkit.tools.verification.layout import as_dtype

_Dataset: Any = indexed_dataset()


def samples_in(data: Any) -> int | None:
    """Return how many samples data of the user's own have; None where they do not say it."""
    if is_arrays(data):
        return samples_of(data)
    if isinstance(data, _Dataset):
        return len(data) * _batch_size(data)
    if not is_tf_dataset(data):
        return None
    number = int(data.cardinality())
    return number if number >= 0 else None


def part(data: Any, samples: int | None, dtype: str) -> Any:
    """Return the first samples of data, all of them if None, in a dtype."""
    if is_arrays(data):
        return of_arrays(lambda array: as_dtype(array[:samples], dtype), data)
    if isinstance(data, _Dataset):
        return FirstBatches(data, None if samples is None else -(-samples // _batch_size(data)), dtype)
    if not is_tf_dataset(data):
        return data
    few = data if samples is None else data.take(samples)
    return _in_double(few) if dtype == "float64" else few


def is_shuffled(data: Any) -> bool:
    """Say whether a data set comes in another order every time."""
    if not is_tf_dataset(data):
        return False
    from hvdkit.keras_common.data import order_checks

    return order_checks.is_shuffled(data)


def _batch_size(data: Any) -> int:
    return len(next(leaves(data[0])))


class FirstBatches(_Dataset):  # type: ignore[misc]
    """The first batches of a ``PyDataset`` of the user's own, all of them if None, in the dtype that is verified."""

    def __init__(self, data: Any, batches: int | None, dtype: str) -> None:
        settings = ("workers", "use_multiprocessing", "max_queue_size")
        super().__init__(**{name: getattr(data, name) for name in settings if hasattr(data, name)})
        self._data, self._dtype = data, dtype
        self._batches = len(data) if batches is None else min(batches, len(data))

    def __len__(self) -> int:
        return self._batches

    def __getitem__(self, place: int) -> Any:
        return map_tree(lambda part: as_dtype(part, self._dtype), self._data[place])

    def on_epoch_end(self) -> None:
        """Let the user's own go on."""
        self._data.on_epoch_end()


def _in_double(data: Any) -> Any:
    import tensorflow as tf

    def cast(part: Any) -> Any:
        return tf.cast(part, tf.float64) if part.dtype.is_floating else part

    return data.map(lambda *sample: tf.nest.map_structure(cast, sample if len(sample) > 1 else sample[0]))


class Announced:
    """The batches that ``fit`` has taken, as they are in the data; it may take some ahead.

    The training step has them in the precision of the library, and on JAX with dicts in the order of their keys.
    """

    def __init__(self, batches: Any) -> None:
        self._taken: deque[Any] = deque()
        observe = batches.observe

        def noting(batch: Any) -> None:
            self._taken.append(batch)
            observe(batch)

        if library() != "tf":
            batches.observe = noting

    def of(self, x: Any, y: Any) -> tuple[Any, Any]:
        """Return the next batch as it is in the data, if it is what the step was given; else that."""
        if not self._taken:
            return x, y
        batch = self._taken.popleft()
        return (batch.inputs, batch.targets) if _same(batch.inputs, x) and _same(batch.targets, y) else (x, y)


def _same(taken: Any, given: Any) -> bool:
    """Say whether two trees hold the same numbers, in whatever precision."""
    if isinstance(taken, dict):
        return isinstance(given, dict) and all(name in given and _same(taken[name], given[name]) for name in taken)
    if is_branch(taken):
        return is_branch(given) and all(map(_same, taken, given))
    return np.array_equal(np.asarray(taken).astype(given.dtype), given)


def is_tf_dataset(data: Any) -> bool:
    """Say whether data are a ``tf.data.Dataset``."""
    if library() != "tf":
        return False
    import tensorflow as tf

    return isinstance(data, tf.data.Dataset)
