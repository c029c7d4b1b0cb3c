"""Recipes with data sets of the user's own for tf and keras, right ones and such as hvdkit shares out wrongly."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent / "gallery"))
import keras_models as nets

import hvdkit
from hvdkit import Recipe, Shard
from hvdkit.recipe.plan import ShardPlan

START = Recipe(
    model=nets.dense, data=nets.flat, optimizer=hvdkit.SGD(lr=0.1, momentum=0.9), metrics=("accuracy",), batch_size=4
)


def samples(change: Callable[[Any], Any] = lambda data: data) -> Callable[[], hvdkit.Data]:
    """Return what makes ``tf.data`` sets of single samples."""

    def data() -> hvdkit.Data:
        import tensorflow as tf

        made = (tf.data.Dataset.from_tensor_slices(part) for part in (nets.flat().train, nets.flat().validation))
        return hvdkit.Data(*map(change, made))

    return data


def in_order() -> Recipe:
    """Samples that are never shuffled."""
    return START.replace(data=samples(), shard=Shard(shuffle=False, uneven="pad"))


def noisy() -> Recipe:
    """Noise of TensorFlow's own, drawn in the pipeline, which shuffles too."""

    def change(data: Any) -> Any:
        import tensorflow as tf

        data = data.shuffle(50, seed=5)
        return data.map(lambda x, y: (x + tf.random.normal([6], stddev=0.1), y))

    return START.replace(data=samples(change), shard=Shard(uneven="drop"))


def unknown_number() -> Recipe:
    """Samples whose number is not known, in their order."""
    known = samples(lambda data: data.filter(lambda x, y: y >= 0))
    return START.replace(data=known, steps_per_epoch=8, shard=Shard(shuffle=False))


def one_share_for_all() -> Recipe:
    """Every rank takes the samples of rank 0."""
    _shards(lambda data, real, size, rank: real(data, size, 0))
    return START.replace(data=samples(), shard=Shard(uneven="pad"))


def a_third_never_arrives() -> Recipe:
    """Ranks share two thirds of the samples out, some of them twice."""
    _shards(lambda data, real, size, rank: real(data, size + 1, rank).repeat(2))
    return START.replace(data=samples(), shard=Shard(uneven="drop"))


def one_order_for_all_epochs() -> Recipe:
    """Nothing is shuffled anew."""
    import tensorflow as tf

    real = tf.data.Dataset.shuffle
    tf.data.Dataset.shuffle = lambda data, *args, **kwargs: real(data, *args, **kwargs, reshuffle_each_iteration=False)
    return START.replace(data=samples(), shard=Shard(uneven="drop"))


def one_share_of_an_unknown_number() -> Recipe:
    """Every rank takes the samples of rank 0, of data without a length."""
    _shards(lambda data, real, size, rank: real(data, size, 0))
    return unknown_number().replace(shard=Shard())


def validated_by_halves() -> Recipe:
    """Of what is evaluated, rank 1 takes the samples of rank 0."""
    from hvdkit.tf import sharding

    sharding.take_evaluation = lambda data, world, batch_size: data.shard(world.size, 0).batch(batch_size)
    return START.replace(data=samples(), shard=Shard(uneven="drop"))


def _shards(change: Callable[..., Any]) -> None:
    import tensorflow as tf

    real = tf.data.Dataset.shard
    tf.data.Dataset.shard = lambda data, size, rank: change(data, real, size, rank)


def batches(last: int = 4) -> Callable[[], hvdkit.Data]:
    """Return what makes a ``PyDataset`` that shuffles its samples after every epoch, and a last batch of its own."""
    import keras

    base = keras.utils.PyDataset if nets.is_keras3() else keras.utils.Sequence
    x, y = nets.flat().train

    class Batches(base):
        def __init__(self) -> None:
            if nets.is_keras3():
                super().__init__()
            self._order = np.random.permutation(28)

        def __len__(self) -> int:
            return 7

        def __getitem__(self, index: int) -> Any:
            rows = self._order[4 * index : 4 * index + (last if index == 6 else 4)]
            return x[rows].astype(np.float64), y[rows], 1.0 + 0.5 * y[rows]

        def on_epoch_end(self) -> None:
            np.random.shuffle(self._order)

    return lambda: hvdkit.Data(train=Batches())


def shuffled_batches() -> Recipe:
    """Seven batches, which two ranks cannot share evenly."""
    return START.replace(data=batches(3))


def one_batch_for_all() -> Recipe:
    """Every rank takes the batches of rank 0."""
    split = ShardPlan.split
    ShardPlan.split = lambda self, block, rank: split(self, block, 0)  # type: ignore[method-assign]
    return START.replace(data=batches())


def batches_left_out() -> Recipe:
    """One batch comes twice, and another one never."""
    order = ShardPlan.order
    ShardPlan.order = lambda self, epoch: np.where((o := order(self, epoch)) == 1, 0, o)  # type: ignore[method-assign]
    return START.replace(data=batches())


def weighed() -> Recipe:
    """Arrays with weights of their samples."""

    def with_weights(pair: Any) -> Any:
        return (*pair, np.linspace(0.5, 1.5, len(pair[0])))

    return START.replace(data=hvdkit.Data(*map(with_weights, (nets.flat().train, nets.flat().validation))))
