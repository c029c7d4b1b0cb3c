"""Models of which a rank uses other parts than another: what only some ranks have a gradient of is trained by them."""

from __future__ import annotations

import numpy as np
import pytest
from keras_kinds import EVERYWHERE, ON_HOROVOD


def parted():
    """Train a model whose rows go through one head or another, by rank; compare with one process."""
    import keras
    import keras_runs as runs

    import hvdkit.keras as hk

    runs.fresh()
    world = hk.init()

    class Parted(keras.Model):
        """One head for the first four rows, another for the last four, and one that nobody uses."""

        def __init__(self, heads):
            super().__init__()
            self.body = keras.layers.Dense(8, activation="tanh")
            self.heads = [keras.layers.Dense(runs.CLASSES) for _ in range(3)]
            self.used = heads
            for layer in (self.body, *self.heads):
                layer.build((None, runs.FEATURES if layer is self.body else 8))
            self.built = True

        def call(self, x):
            parts = [self.heads[head](self.body(x[rows])) for head, rows in self.used]
            join = keras.ops.concatenate if hasattr(keras, "ops") else keras.backend.concatenate
            return parts[0] if len(parts) == 1 else join(parts, axis=0)

    x, y = runs.samples(8)
    mine = slice(4 * world.rank, 4 * world.rank + 4)
    scale = (keras.optimizers if hasattr(keras, "ops") else keras.mixed_precision).LossScaleOptimizer
    found = {}
    for name, wrap in (("plain", lambda optimizer: optimizer), ("scaled", scale)):
        keras.utils.set_random_seed(1)
        model = Parted([(world.rank, slice(0, 4))])
        alone = Parted([(0, slice(0, 4)), (1, slice(4, 8))])
        before = runs.values(model.weights)
        runs.start(alone, before)
        optimizer = hk.distribute(wrap(keras.optimizers.AdamW(0.05, weight_decay=0.1)), model)
        model.compile(optimizer=optimizer, loss=runs.cross_entropy())
        alone.compile(optimizer=wrap(keras.optimizers.AdamW(0.05, weight_decay=0.1)), loss=runs.cross_entropy())
        for _ in range(3):
            model.train_on_batch(x[mine], y[mine])
            alone.train_on_batch(x, y)
        after = runs.values(model.weights)
        expected = runs.values(alone.weights)
        same_unused = [np.array_equal(a, b) for a, b in zip(after[-2:], before[-2:], strict=True)] == [
            np.array_equal(a, b) for a, b in zip(expected[-2:], before[-2:], strict=True)
        ]
        found[name] = runs.distance(after, expected, before), same_unused, [value.tobytes() for value in after]
    return found


@pytest.mark.parametrize("ranks", [*EVERYWHERE, *ON_HOROVOD], indirect=True)
def test_r07_a_part_of_a_model_that_one_rank_alone_uses_equals_one_process(ranks):
    first, second = ranks.run(parted)
    assert first == second
    for far, same_unused, _ in first.values():
        assert far <= 1e-4
        assert same_unused
