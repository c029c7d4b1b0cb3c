"""Learning rates that change: schedule objects, warm-up and schedule callbacks, and a recipe's own."""

from __future__ import annotations

import numpy as np
import pytest
from keras_kinds import EVERYWHERE

import hvdkit

STEPS = 7


def line():
    """Return samples of a line in three dimensions: seven global batches of eight."""
    x = np.random.default_rng(2).normal(size=(STEPS * 8, 3)).astype("float32")
    return x, (x @ [[1.0], [-2.0], [0.5]] + 0.1).astype("float32")


def line_net():
    import keras

    inputs = keras.Input((3,))
    return keras.Model(inputs, keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")(inputs))


def expected_weights(rates, epochs, momentum):
    """Return the weights after momentum SGD as torch has it, where the rate multiplies the velocity."""
    from hvdkit.recipe.plan import ShardPlan

    x, y = (np.float64(part) for part in line())
    w, v = np.ones(3), np.zeros(3)
    for step in range(epochs * STEPS):
        rows = ShardPlan(len(x), 8, seed=1).order(step // STEPS)[step % STEPS * 8 : step % STEPS * 8 + 8]
        v = momentum * v + 2 * x[rows].T @ (x[rows] @ w - y[rows, 0]) / 8
        w = w - rates[step] * v
    return w


def far(found, rates, epochs, momentum=0.9):
    expected = expected_weights(rates, epochs, momentum)
    return float(np.abs(found[:, 0] - expected).max() / np.abs(expected - 1).max())


@pytest.mark.parametrize("ranks", EVERYWHERE, indirect=True)
def test_b03_stock_schedules_are_scaled_through_their_config(ranks):
    def body():
        import keras

        import hvdkit.keras as hk

        hk.init()
        kinds = keras.optimizers.schedules
        found = {}
        for schedule in (
            kinds.ExponentialDecay(0.1, 5, 0.5),
            kinds.InverseTimeDecay(0.1, 5, 0.5),
            kinds.PolynomialDecay(0.1, 8, 0.01, power=2.0),
            kinds.PiecewiseConstantDecay([3, 8], [0.1, 0.05, 0.01]),
            kinds.CosineDecay(0.01, 20, alpha=0.1, warmup_target=0.1, warmup_steps=4),
            kinds.CosineDecayRestarts(0.1, 4),
        ):
            scaled = hk.scale_lr(schedule)
            values = [[float(entry(step)) for step in (0, 5, 10)] for entry in (schedule, scaled)]
            found[type(schedule).__name__] = (type(scaled) is type(schedule), *values)
        return found

    for found in ranks.run(body):
        assert len(found) == 6
        for name, (same, plain, scaled) in found.items():
            assert same, name
            assert scaled == pytest.approx([2 * value for value in plain], rel=1e-6), name


@pytest.mark.parametrize("ranks", EVERYWHERE, indirect=True)
def test_b03_a_schedule_object_in_fit_and_in_a_recipe(ranks):
    def body():
        import keras
        import keras_runs as runs

        import hvdkit.keras as hk

        runs.fresh()
        hk.init()
        decay = keras.optimizers.schedules.ExponentialDecay(0.01, 5, 0.5)
        model = line_net()
        optimizer = hk.distribute(keras.optimizers.SGD(hk.scale_lr(decay)), model)
        model.compile(optimizer=optimizer, loss="mse")
        batches = hk.shard(line(), 4, seed=1)
        model.fit(batches, epochs=2, callbacks=[hk.callbacks.BroadcastGlobalVariablesCallback()], verbose=0)
        config = model.optimizer.get_config()["learning_rate"]

        recipe = hvdkit.Recipe(
            model=line_net, data=hvdkit.Data(train=line()), loss="mean_squared_error", seed=1, batch_size=4, epochs=2,
            optimizer=lambda: keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.01, 5, 0.5)),
        )  # fmt: skip
        trainers = [hvdkit.apply(recipe, "keras")]
        trainers += [hvdkit.apply(recipe, "tf")] if keras.backend.backend() == "tensorflow" else []
        rates = [trainer.fit().values("learning_rate") for trainer in trainers]
        nets = [model, *(trainer.model for trainer in trainers)]
        return config, rates, [runs.values(net.weights)[0] for net in nets]

    results = ranks.run(body)
    assert [entry.tobytes() for entry in results[0][2]] == [entry.tobytes() for entry in results[1][2]]
    expected = [0.02 * 0.5 ** (step / 5) for step in range(2 * STEPS)]
    for config, rates, nets in results:
        assert config["class_name"] == "ExponentialDecay"
        assert config["config"]["initial_learning_rate"] == pytest.approx(0.02)
        for found in rates:
            assert found == pytest.approx([expected[6], expected[13]])
        for net in nets:
            assert far(net, expected, 2, momentum=0.0) < 1e-5


@pytest.mark.parametrize("ranks", EVERYWHERE, indirect=True)
def test_warmup_then_schedule_in_a_script(ranks):
    def body():
        import keras
        import keras_runs as runs

        import hvdkit.keras as hk

        runs.fresh()
        hk.init()
        model, target = line_net(), hk.scale_lr(0.01)
        optimizer = hk.distribute(keras.optimizers.SGD(target, momentum=0.9), model)
        model.compile(optimizer=optimizer, loss="mse")
        callbacks = [
            hk.callbacks.BroadcastGlobalVariablesCallback(),
            hk.callbacks.LearningRateWarmupCallback(target, warmup_epochs=1),
            hk.callbacks.LearningRateScheduleCallback(target, 0.5, start_epoch=1, end_epoch=2),
            hk.callbacks.LearningRateScheduleCallback(target, lambda e: 0.1**e, start_epoch=2, end_epoch=3),
            hk.callbacks.LearningRateScheduleCallback(target, lambda e: 1 / e, start_epoch=3, staircase=False),
        ]
        model.fit(hk.shard(line(), 4, seed=1), epochs=4, callbacks=callbacks, shuffle=False, verbose=0)
        rate = model.optimizer.get_config()["learning_rate"]
        return runs.values(model.weights)[0], np.isscalar(rate), runs.state(model, optimizer)

    rates = [0.01 + 0.01 * (step + 1) / STEPS for step in range(STEPS)] + [0.01] * STEPS + [0.0002] * STEPS
    rates += [0.02 / (3 + batch / STEPS) for batch in range(STEPS)]
    results = ranks.run(body)
    assert results[0][2] == results[1][2]
    for weights, plain, _ in results:
        assert plain
        assert far(weights, rates, 4) < 1e-5


@pytest.mark.parametrize("ranks", EVERYWHERE, indirect=True)
def test_warmup_and_schedule_of_a_recipe(ranks):
    def body():
        import keras_runs as runs

        runs.fresh()
        recipe = hvdkit.Recipe(
            model=line_net, data=hvdkit.Data(train=line()), loss="mean_squared_error", seed=1, batch_size=4, epochs=2,
            optimizer=hvdkit.SGD(0.01, momentum=0.9), scale_lr=hvdkit.ScaleLR(warmup_epochs=1),
            schedule=lambda epoch: 1 / (1 + epoch),
        )  # fmt: skip
        trainer = hvdkit.apply(recipe, "keras")
        found = trainer.fit(epochs=3).values("learning_rate")
        return runs.values(trainer.model.weights)[0], found

    rates = [0.01 + 0.01 * (step + 1) / STEPS for step in range(STEPS)]
    rates += [0.02 / (1 + step / STEPS) for step in range(STEPS, 3 * STEPS)]
    for weights, found in ranks.run(body):
        assert found == pytest.approx([rates[step] for step in (6, 13, 20)])
        assert far(weights, rates, 3) < 1e-5


@pytest.mark.parametrize("ranks", EVERYWHERE, indirect=True)
def test_b03_rates_that_cannot_be_set_are_refused_before_training(ranks):
    def body():
        import keras

        import hvdkit.keras as hk
        from hvdkit.errors import RecipeError

        hk.init()
        kinds, warmup = keras.optimizers.schedules, hk.callbacks.LearningRateWarmupCallback(0.2, warmup_epochs=1)

        class Own(kinds.LearningRateSchedule):
            def __call__(self, step):
                return 0.1

        def apply(rate, **options):
            recipe = hvdkit.Recipe(
                model=line_net, data=hvdkit.Data(train=line()), loss="mean_squared_error", batch_size=4,
                optimizer=lambda: keras.optimizers.SGD(rate), **options,
            )  # fmt: skip
            hvdkit.apply(recipe, "keras")

        def fit(optimizer, **options):
            model, seen = line_net(), []
            model.compile(optimizer=optimizer, loss="mse", **options)
            watch = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append(batch))
            try:
                model.fit(*line(), callbacks=[warmup, watch], verbose=0)
            finally:
                assert not seen

        stock = kinds.ExponentialDecay(0.1, 5, 0.5)
        calls = [
            lambda: hk.scale_lr(Own()),
            lambda: apply(Own()),
            lambda: apply(stock, scale_lr=hvdkit.ScaleLR(warmup_epochs=1)),
            lambda: fit(hk.distribute(keras.optimizers.SGD(stock))),
            lambda: fit(keras.optimizers.SGD(0.2)),
        ]
        if keras.backend.backend() == "tensorflow":  # Keras on PyTorch has no such steps, and on JAX they are served
            calls.append(lambda: fit(hk.distribute(keras.optimizers.SGD(0.2)), steps_per_execution=2))
        found = []
        for call in calls:
            try:
                call()
            except RecipeError as error:
                found.append(str(error))
        return found

    own = (
        "Own is a learning-rate schedule of your own, which hvdkit cannot scale; multiply what its __call__ returns by "
        "hvdkit.keras.scale_lr(1.0), or give a number and Recipe(schedule=...)"
    )
    several = "LearningRateWarmupCallback sets the rate of every batch; compile the model with steps_per_execution=1"
    for found in ranks.run(body):
        assert found == [
            own,
            own,
            "the optimizer's learning rate is a ExponentialDecay, which does not go with warmup_epochs; leave "
            "warmup_epochs out, or give the optimizer a number",
            "LearningRateWarmupCallback: the optimizer's learning rate is a ExponentialDecay; give it a number, or "
            "leave the callback out and scale the schedule with hvdkit.keras.scale_lr(schedule)",
            "LearningRateWarmupCallback: the optimizer is not distributed, so every process would train alone; compile "
            "the model with hvdkit.keras.distribute(optimizer, model)",
            *([] if ranks.combination.env else [several]),
        ]


@pytest.mark.parametrize("ranks", EVERYWHERE, indirect=True)
def test_r18_a_scheduler_that_would_undo_the_scaling_is_refused(ranks):
    def body():
        import keras
        import keras_runs as runs
        from complaints import complaint

        import hvdkit.keras as hk

        runs.fresh()
        rank = hk.init().rank
        scheduler, own = keras.callbacks.LearningRateScheduler, hk.callbacks.LearningRateScheduleCallback
        held, used = [], []

        def fit(callback, rate=0.1, scaled=True):
            model = line_net()
            model.compile(hk.distribute(keras.optimizers.SGD(hk.scale_lr(rate) if scaled else rate), model), "mse")

            def note(epoch, logs):
                used.append(float(runs.values([model.optimizer.learning_rate])[0]))

            look = keras.callbacks.LambdaCallback(on_epoch_end=note)
            average = hk.callbacks.MetricAverageCallback()
            x, y = line()
            held.append(len(used))
            model.fit(x[rank::2], y[rank::2], batch_size=4, epochs=2, callbacks=[average, callback, look], verbose=0)

        halving = [0.5, 0.25]
        texts = [
            complaint(fit, scheduler(lambda epoch: 0.1 * halving[epoch])),
            complaint(fit, scheduler(lambda epoch, rate: 0.1 * halving[epoch])),
            complaint(fit, scheduler(lambda epoch: [0.03, 0.1][epoch])),
            complaint(fit, scheduler(lambda epoch: 0.1), 0.2, scaled=False),
            complaint(fit, own(0.1, lambda epoch: halving[epoch])),
        ]
        refused = list(used)
        for right in (
            scheduler(lambda epoch: hk.scale_lr(0.1) * halving[epoch]),
            scheduler(lambda epoch, rate: rate * 0.5),
            own(hk.scale_lr(0.1), lambda epoch: halving[epoch]),
        ):
            fit(right)
        return texts, refused, used

    first, second = ranks.run(body)
    assert first == second
    texts, refused, used = first
    assert refused == []
    for text, largest in zip(texts, ("0.05", "0.05", "0.1", "0.1"), strict=False):
        assert text.startswith(
            f"RecipeError: LearningRateScheduler sets rates up to {largest}, those of one process, but the optimizer's "
            "is scaled to 0.2: let its function return hvdkit.keras.scale_lr(rate)"
        )
    assert texts[4].startswith("RecipeError: LearningRateScheduleCallback has initial_lr 0.1, the rate of one process")
    assert used == pytest.approx([0.1, 0.05] * 3, rel=1e-6)


@pytest.mark.parametrize("ranks", EVERYWHERE, indirect=True)
def test_r18_a_plateau_lowers_the_scaled_rate_by_the_averaged_metric(ranks):
    def body():
        import keras
        import keras_runs as runs

        import hvdkit.keras as hk

        runs.fresh()
        rank, (x, y) = hk.init().rank, line()
        model = line_net()
        model.compile(hk.distribute(keras.optimizers.SGD(hk.scale_lr(0.1)), model), "mse")
        plateau = keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=1, min_delta=100.0)
        callbacks = [hk.callbacks.MetricAverageCallback(), plateau]
        model.fit(x[rank::2], y[rank::2], batch_size=4, epochs=3, callbacks=callbacks, verbose=0)
        return float(runs.values([model.optimizer.learning_rate])[0])

    assert ranks.run(body) == pytest.approx([0.05, 0.05], rel=1e-6)
