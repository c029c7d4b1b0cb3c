"""Complex weights of Keras models: real and imaginary part are both averaged."""

from __future__ import annotations

import pytest
from keras_kinds import EVERYWHERE


def trained():
    """Train a layer with complex weights on the ranks and on one process; return how far they are apart."""
    import keras
    import keras_runs as runs
    import numpy as np

    import hvdkit.keras as hk

    runs.fresh()
    world = hk.init()

    class Spectrum(keras.layers.Layer):
        def build(self, shape):
            self.filter = self.add_weight(shape=(shape[-1], 4), initializer="ones", dtype="complex64")

        def call(self, x):
            if not hasattr(keras, "ops"):
                import tensorflow as tf

                return tf.abs(tf.matmul(tf.cast(x, "complex64"), self.filter + 0.5j))
            spectrum = keras.ops.matmul(keras.ops.cast(x, "complex64"), self.filter + 0.5j)
            return keras.ops.square(keras.ops.real(spectrum)) + keras.ops.imag(spectrum)

    x, y = np.random.default_rng(2).normal(size=(8, 3)).astype("float32"), np.arange(8) % 4
    mine = slice(4 * world.rank, 4 * world.rank + 4)

    def build():
        inputs = keras.Input((3,))
        return keras.Model(inputs, Spectrum()(inputs))

    model, alone = build(), build()
    before = runs.values(model.weights)
    model.compile(hk.distribute(keras.optimizers.SGD(0.1), model, clip_norm=100.0), runs.cross_entropy())
    alone.compile(keras.optimizers.SGD(0.1), runs.cross_entropy())
    for _ in range(3):
        model.train_on_batch(x[mine], y[mine])
        alone.train_on_batch(x, y)
    (found,), (expected,) = runs.values(model.weights), runs.values(alone.weights)
    moved = expected - before[0]
    return float(np.abs(found - expected).max()), float(np.abs(moved.real).max()), float(np.abs(moved.imag).max())


@pytest.mark.parametrize("ranks", EVERYWHERE, indirect=True)
def test_r08_complex_weights_equal_one_process(ranks):
    for far, real, imaginary in ranks.run(trained):
        assert far < 1e-5
        assert min(real, imaginary) > 1e-3
