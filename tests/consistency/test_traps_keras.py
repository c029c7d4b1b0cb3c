"""Traps of data-parallel training in Keras and TensorFlow: the stock way falls into each, hence hvdkit's.

Where Horovod is right in Keras 2 and wrong in Keras 3, or only raises in one, the test says so and asserts both.
"""

from __future__ import annotations

import numpy as np
import pytest
from ranks import on

STOCK = on("keras", engines=("horovod",))


def three():
    import keras

    return hasattr(keras, "ops")


def line():
    """Return a model of one layer without bias, whose weights start at 1."""
    import keras
    import keras_runs as runs

    runs.fresh()
    inputs = keras.Input((3,))
    return keras.Model(inputs, keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")(inputs))


def distributed(stock, optimizer, model=None):
    import horovod.tensorflow.keras as hvd

    import hvdkit.keras as hk

    return hvd.DistributedOptimizer(optimizer) if stock else hk.distribute(optimizer, model)


def callbacks(stock):
    import horovod.tensorflow.keras as hvd

    import hvdkit.keras as hk

    return hvd.callbacks if stock else hk.callbacks


def rate(model):
    import keras_runs as runs

    return round(float(runs.values([model.optimizer.learning_rate])[0]), 6)


@pytest.mark.parametrize("ranks", STOCK, indirect=True)
def test_trap_fit_averages_gradients_in_keras_3(ranks):
    """Stock: in Keras 3 nothing is averaged, and nothing says so; in Keras 2 it is."""

    def body(stock):
        import keras
        import keras_runs as runs

        from hvdkit.job.world import current

        model = line()
        model.compile(optimizer=distributed(stock, keras.optimizers.SGD(0.1), model), loss="mse")
        x = np.full((8, 3), 1.0 + current().rank, "float32")
        model.fit(x, x[:, :1], batch_size=4, verbose=0)
        return three(), runs.values(model.weights)[0]

    (keras3, first), (_, second) = ranks.run(body, stock=True)
    assert (first == second).all() == (not keras3)
    (_, first), (_, second) = ranks.run(body, stock=False)
    assert (first == second).all()
    assert (first != 1).all()


@pytest.mark.parametrize("ranks", STOCK, indirect=True)
def test_trap_wrapping_keeps_the_optimizers_state(ranks):
    """Stock: the wrapper is made from the optimizer's config alone, without its steps and moments."""

    def body(stock):
        import keras

        model = line()
        optimizer = keras.optimizers.Adam(0.1)
        optimizer.build(model.trainable_variables)
        optimizer.apply_gradients([(np.ones((3, 1), "float32"), model.trainable_variables[0])])
        after = distributed(stock, optimizer, model)
        after.build(model.trainable_variables)
        return int(after.iterations), after is optimizer

    assert ranks.run(body, stock=True) == [(0, False)] * 2
    assert ranks.run(body, stock=False) == [(1, True)] * 2


@pytest.mark.parametrize("ranks", STOCK, indirect=True)
def test_trap_the_learning_rate_is_broadcast(ranks):
    """Stock: Keras 2 keeps the rate apart from the variables that are sent; in Keras 3 the callback raises."""

    def body(stock):
        import keras

        from hvdkit.job.world import current

        model = line()
        rates = [0.01, 0.1]
        optimizer = distributed(stock, keras.optimizers.SGD(rates[current().rank]), model)
        model.compile(optimizer=optimizer, loss="mse")
        x, broadcast = np.ones((4, 3), "float32"), callbacks(stock).BroadcastGlobalVariablesCallback(0)
        try:
            model.fit(x, x[:, :1], callbacks=[broadcast], verbose=0)
        except AttributeError:
            return three(), "raises"
        return three(), rate(model)

    stock = ranks.run(body, stock=True)
    assert stock == ([(True, "raises")] * 2 if stock[0][0] else [(False, 0.01), (False, 0.1)])
    assert [found for _, found in ranks.run(body, stock=False)] == [0.01, 0.01]


@pytest.mark.parametrize("ranks", STOCK, indirect=True)
def test_trap_a_warmup_that_would_undo_the_scaling_is_refused(ranks):
    """Stock: given the rate of one process, the warm-up ends there in Keras 2; in Keras 3 it raises in any case."""

    def body(stock, initial, **options):
        import keras

        from hvdkit.errors import RecipeError

        model = line()
        model.compile(optimizer=distributed(stock, keras.optimizers.SGD(0.02), model), loss="mse")
        x = np.ones((16, 3), "float32")
        warmup = callbacks(stock).LearningRateWarmupCallback(initial, warmup_epochs=2, **options)
        try:
            model.fit(x, x[:, :1], batch_size=4, epochs=3, callbacks=[warmup], verbose=0)
        except RecipeError as error:
            return three(), str(error)
        except AttributeError:
            return three(), "raises"
        return three(), rate(model)

    for keras3, found in ranks.run(body, stock=True, initial=0.01, momentum_correction=False):
        assert found == ("raises" if keras3 else 0.01)
    assert [found for _, found in ranks.run(body, stock=False, initial=0.02)] == [0.02, 0.02]
    for _, found in ranks.run(body, stock=False, initial=0.01):
        assert found == (
            "LearningRateWarmupCallback would end at initial_lr=0.01, but the optimizer has the rate 0.02; give the "
            "scaled one, scale_lr(lr), to both"
        )


@pytest.mark.parametrize("ranks", STOCK, indirect=True)
def test_trap_the_warmup_corrects_momentum(ranks):
    """Stock: the correction raises in Keras 2 and 3, and without it momentum holds steps of the lower rate."""

    def body(stock, **options):
        import keras
        import keras_runs as runs

        model = line()
        model.compile(optimizer=distributed(stock, keras.optimizers.SGD(0.02, momentum=0.9), model), loss="mse")
        count = 16 if stock else 32  # four batches on each rank: hvdkit shares out what all ranks hold
        x, y = np.ones((count, 3), "float32"), np.zeros((count, 1), "float32")
        warmup = callbacks(stock).LearningRateWarmupCallback(0.02, warmup_epochs=2, **options)
        try:
            model.fit(x, y, batch_size=4, epochs=2, callbacks=[warmup], shuffle=False, verbose=0)
        except AttributeError:
            return three(), "raises"
        w, v = 1.0, 0.0  # momentum as torch has it, with the rate outside; all three weights are alike
        for step in range(8):
            v = 0.9 * v + 2 * 3 * w
            w -= (0.01 + 0.01 * (step + 1) / 8) * v
        return three(), abs(float(runs.values(model.weights)[0][0, 0]) - w)

    assert [found for _, found in ranks.run(body, stock=True)] == ["raises"] * 2
    for keras3, error in ranks.run(body, stock=True, momentum_correction=False):
        assert error == "raises" if keras3 else error > 1e-2
    for _, error in ranks.run(body, stock=False):
        assert error < 1e-5


@pytest.mark.parametrize("ranks", STOCK, indirect=True)
def test_trap_batchnorms_statistics_in_a_file_are_those_of_all_ranks(ranks, tmp_path):
    """Stock: running statistics drift apart, and the file that rank 0 writes holds those of its own shard."""

    def body(stock, path):
        import keras
        import keras_runs as runs

        import hvdkit.keras as hk
        from hvdkit.job.world import current

        runs.fresh()
        inputs = keras.Input((3,))
        model = keras.Model(inputs, keras.layers.BatchNormalization(momentum=0.0)(inputs))
        model.compile(optimizer=distributed(stock, keras.optimizers.SGD(0.1), model), loss="mse")
        x = np.full((4, 3), 1.0 + 2 * current().rank, "float32")
        model.fit(x, x, batch_size=4, verbose=0)
        if not stock:
            hk.save(path, model)
        if current().rank:
            return None
        if stock:
            np.savez(
                path,
                **{
                    variable.name: value
                    for variable, value in zip(model.weights, runs.values(model.weights), strict=True)
                },
            )
        with np.load(path) as file:
            return next(file[name] for name in file.files if "moving_mean" in name)

    assert ranks.run(body, True, str(tmp_path / "stock.npz"))[0].tolist() == [1.0] * 3
    assert ranks.run(body, False, str(tmp_path / "ours.npz"))[0].tolist() == [2.0] * 3
