"""A user's own script with compile and fit: the verbs, the three callbacks, and what comes out."""

from __future__ import annotations

import numpy as np
import pytest
from keras_kinds import EVERYWHERE, ON_HOROVOD, ON_TENSORFLOW, ON_TORCH

BATCH, EPOCHS = 4, 3


def validated_on(x, y):
    """Return the arguments of fit: data of TensorFlow's own kind on TensorFlow, arrays elsewhere."""
    import keras_runs as runs

    if runs.library() != "tensorflow":
        return {"validation_data": (x, y), "validation_batch_size": BATCH}
    import tensorflow as tf

    return {"validation_data": tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)}


def trained_both_ways(count):
    """Fit on the ranks by a script, and on one process on global batches; runs on every rank."""
    import keras
    import keras_runs as runs

    import hvdkit.keras as hk

    runs.fresh()
    world = hk.init()
    keras.utils.set_random_seed(world.rank)  # ranks start different
    train, held_out = runs.samples(count), runs.samples(11, seed=9)
    weighted = count % 8 < 2 and count % 8 > 0

    def accuracy():
        return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]

    model = runs.small_net()
    own = runs.values(model.weights)
    optimizer = hk.distribute(keras.optimizers.Adam(hk.scale_lr(0.01)), model)
    metrics = {"weighted_metrics": accuracy()} if weighted else {"metrics": accuracy()}
    model.compile(optimizer=optimizer, loss=runs.cross_entropy(), **metrics)
    callbacks = [
        hk.callbacks.BroadcastGlobalVariablesCallback(0),
        hk.callbacks.MetricAverageCallback(),
        hk.callbacks.LearningRateWarmupCallback(initial_lr=hk.scale_lr(0.01), warmup_epochs=0),
    ]
    batches = hk.shard(train, BATCH, seed=runs.SEED)
    validation = validated_on(*(part[world.rank :: 2] for part in held_out))
    history = model.fit(batches, epochs=EPOCHS, callbacks=callbacks, shuffle=False, verbose=0, **validation).history

    start = runs.values(runs.start(runs.small_net(), world.broadcast_object(own)).weights)
    alone = runs.start(runs.small_net(), start)
    alone.compile(optimizer=keras.optimizers.Adam(0.02), loss=runs.cross_entropy(), metrics=accuracy())
    expected = {}
    per_epoch = -(-count // 8)
    for number, indices in enumerate(runs.blocks(count, 8, EPOCHS)):
        if number % per_epoch == 0:
            sums = {}
        alone.reset_metrics()
        logs = alone.train_on_batch(train[0][indices], train[1][indices], return_dict=True)
        sums = {name: sums.get(name, 0) + float(value) * len(indices) for name, value in logs.items()}
        if (number + 1) % per_epoch == 0:
            held = alone.evaluate(*held_out, return_dict=True, verbose=0)
            found = {name: value / count for name, value in sums.items()}
            for name, value in {**found, **{f"val_{key}": held[key] for key in held}}.items():
                expected.setdefault(name, []).append(value)
    return {
        "own": [value.tobytes() for value in own],
        "state": runs.state(model, model.optimizer),
        "distance": runs.distance(runs.values(model.weights), runs.values(alone.weights), start),
        "history": {name: history[name] for name in expected},
        "expected": expected,
    }


@pytest.mark.parametrize("ranks", [*EVERYWHERE, *ON_HOROVOD], indirect=True)
@pytest.mark.parametrize("count", [32, 29, 25])
def test_b01_fit_in_a_script_equals_one_process_on_the_union(ranks, count):
    first, second = ranks.run(trained_both_ways, count)
    assert first["own"] != second["own"]
    assert first["state"] == second["state"]
    assert first["distance"] <= 1e-4
    assert first["history"] == second["history"]
    assert set(first["history"]) == {"loss", "accuracy", "val_loss", "val_accuracy"}
    for name, values in first["expected"].items():
        assert all(type(value) is float for value in first["history"][name])
        np.testing.assert_allclose(first["history"][name], values, rtol=1e-4, err_msg=name)


@pytest.mark.parametrize("ranks", EVERYWHERE, indirect=True)
def test_b01_every_update_is_reduced_once(ranks):
    def body():
        import keras
        import keras_runs as runs

        import hvdkit.keras as hk
        from hvdkit.keras_common.gradients.reduction import shared_channel

        runs.fresh()
        hk.init()
        keras.utils.set_random_seed(1)
        model, channel, calls = runs.small_net(), shared_channel(), []
        # where the step is compiled, it calls back to _sum
        name = "_sum" if hasattr(channel, "_sum") else "start_allreduce"
        summed = getattr(channel, name)
        setattr(channel, name, lambda flat: calls.append(int(np.prod(flat.shape))) or summed(flat))
        try:
            model.compile(optimizer=hk.distribute(keras.optimizers.SGD(0.1), model), loss=runs.cross_entropy())
            model.fit(hk.shard(runs.samples(40), 4), epochs=2, shuffle=False, verbose=0)
        finally:
            delattr(channel, name)
        return calls, sum(int(np.prod(variable.shape)) for variable in model.trainable_variables)

    for calls, size in ranks.run(body):
        assert calls == [size + 1] * 10  # all gradients and the count, in 2 epochs of 5 updates


@pytest.mark.parametrize("ranks", EVERYWHERE, indirect=True)
def test_d03_warmup_reaches_the_scaled_rate_and_corrects_momentum(ranks):
    def body():
        import keras
        import keras_runs as runs

        import hvdkit.keras as hk
        from hvdkit.recipe.plan import ShardPlan

        runs.fresh()
        world = hk.init()
        generator = np.random.default_rng(2)
        x = generator.normal(size=(14 * 8, 3)).astype("float32")
        y = (x @ [[1.0], [-2.0], [0.5]] + 0.1).astype("float32")
        model = keras.Sequential([keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")])
        model.build((None, 3))
        rates, weights = [], []

        class Watch(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                runs.settle(model)
                rates.append(float(runs.values([self.model.optimizer.learning_rate])[0]))
                weights.append(runs.values(model.weights)[0][:, 0])

        target = hk.scale_lr(0.01)
        model.compile(optimizer=hk.distribute(keras.optimizers.SGD(target, momentum=0.9), model), loss="mse")
        warmup = hk.callbacks.LearningRateWarmupCallback(target, warmup_epochs=3)
        broadcast, average = hk.callbacks.BroadcastGlobalVariablesCallback(), hk.callbacks.MetricAverageCallback()
        callbacks = [broadcast, average, warmup, Watch()]
        model.fit(hk.shard((x, y), 4, seed=1), epochs=4, callbacks=callbacks, shuffle=False, verbose=0)

        w, v, expected = np.ones(3), np.zeros(3), []
        for step in range(56):
            order = ShardPlan(len(x), 4 * world.size, seed=1).order(step // 14)
            rows = order[step % 14 * 8 : step % 14 * 8 + 8]
            a, b = np.float64(x[rows]), np.float64(y[rows])[:, 0]
            v = 0.9 * v + 2 * a.T @ (a @ w - b) / len(b)  # momentum as torch has it
            w = w - (0.01 + 0.01 * min(step + 1, 42) / 42) * v
            expected.append(w)
        return rates, float(np.abs(np.array(weights) - expected).max() / np.abs(expected).max())

    for rates, error in ranks.run(body):
        assert [rates[i] for i in (13, 27, 41)] == pytest.approx([0.04 / 3, 0.05 / 3, 0.02], rel=1e-6)
        assert rates[42:] == pytest.approx([0.02] * 14, rel=1e-6)
        assert error < 1e-5


# without fit there is no table of rates for JAX
@pytest.mark.parametrize("ranks", [*ON_TENSORFLOW, *ON_TORCH], indirect=True)
def test_warmup_of_eight_processes_has_round_epoch_ends(ranks):
    def body():
        import keras
        import keras_runs as runs

        import hvdkit.keras as hk

        runs.fresh()
        hk.init()
        model = runs.small_net()
        model.compile(optimizer=keras.optimizers.SGD(0.08), loss=runs.cross_entropy())
        warmup = hk.warmup(0.08, base=0.01, epochs=3, steps_per_epoch=14)
        warmup.set_model(model)
        rates = []
        for epoch in range(4):
            warmup.on_epoch_begin(epoch)
            for batch in range(14):
                warmup.on_train_batch_begin(batch)
            rates.append(float(runs.values([model.optimizer.learning_rate])[0]))
        return rates

    for rates in ranks.run(body):
        assert rates == pytest.approx([0.1 / 3, 0.17 / 3, 0.08, 0.08], rel=1e-6)


@pytest.mark.parametrize("ranks", EVERYWHERE, indirect=True)
def test_d14_keras_clips_what_is_reduced(ranks):
    def body(kind):
        import keras
        import keras_runs as runs

        import hvdkit.keras as hk

        runs.fresh()
        hk.init()
        keras.utils.set_random_seed(1)
        data = runs.samples(40)
        model, alone = runs.small_net(), runs.small_net()
        before = runs.values(model.weights)
        runs.start(alone, before)
        model.compile(hk.distribute(keras.optimizers.SGD(0.4, **{kind: 0.1}), model), runs.cross_entropy())
        model.fit(hk.shard(data, 4, seed=runs.SEED), epochs=4, shuffle=False, verbose=0)
        runs.plain(alone, keras.optimizers.SGD(0.4, **{kind: 0.1}), data, runs.blocks(40, 8, 4))
        free = runs.start(runs.small_net(), before)
        runs.plain(free, keras.optimizers.SGD(0.4), data, runs.blocks(40, 8, 4))
        after, expected = runs.values(model.weights), runs.values(alone.weights)
        return runs.distance(after, expected, before), runs.distance(runs.values(free.weights), expected, before)

    for kind in ("clipnorm", "global_clipnorm", "clipvalue"):
        for far, unclipped in ranks.run(body, kind):
            assert far <= 1e-4
            assert unclipped > 0.1 or kind == "clipvalue"
