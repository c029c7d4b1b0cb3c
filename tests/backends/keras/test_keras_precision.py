"""Loss scaling and half precision: an overflow on one rank makes all ranks skip the update."""

from __future__ import annotations

import pytest
from keras_kinds import EVERYWHERE, ON_HOROVOD, ON_JAX, ON_TENSORFLOW, ON_TORCH
from ranks import on, slowly

ALL = [*ON_TENSORFLOW, *ON_TORCH, *slowly(ON_JAX)]


def net():
    """Return a net of the global policy, whose outputs are float32."""
    import keras
    import keras_runs as runs

    inputs = keras.Input((runs.FEATURES,))
    x = keras.layers.Dense(8, activation="tanh")(inputs)
    return keras.Model(inputs, keras.layers.Dense(runs.CLASSES, dtype="float32")(x))


def scaled(optimizer):
    """Return what Keras itself puts around an optimizer under mixed_float16."""
    import keras

    return (keras.optimizers if hasattr(keras, "ops") else keras.mixed_precision).LossScaleOptimizer(optimizer)


def scale_of(optimizer):
    import keras_runs as runs

    found = optimizer.dynamic_scale if hasattr(optimizer, "dynamic_scale") else optimizer.loss_scale
    return float(runs.values([found])[0])


def trained(policy, options, accumulate=1):
    """Fit two epochs of four passes, the second of which overflows on rank 1 alone; compare with one process."""
    import keras
    import keras_runs as runs
    import numpy as np

    import hvdkit.keras as hk

    runs.fresh()
    hk.init()
    keras.utils.set_random_seed(1)
    keras.mixed_precision.set_global_policy(policy)
    try:
        x, y = runs.samples(32)
        x[9] = np.inf  # of rank 1, in the second batch
        model, alone = net(), net()
        before = runs.values(model.weights)
        runs.start(alone, before)
        wrap = scaled if policy == "float32" else (lambda optimizer: optimizer)
        optimizer = wrap(keras.optimizers.Adam(0.05, **options))
        if policy == "float32":
            hk.distribute(optimizer, model, accumulate=accumulate)
            model.compile(optimizer=optimizer, loss=runs.cross_entropy())
        else:  # here compile is looked up before it can be watched
            model.compile(optimizer=hk.distribute(optimizer, model), loss=runs.cross_entropy())
        after = []

        class Watch(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                runs.settle(model)
                after.append([value.tobytes() for value in runs.values(model.weights)])

        batches = hk.shard((x, y), 4, shuffle=False)
        model.fit(batches, epochs=2, shuffle=False, verbose=0, callbacks=[Watch()])
        own = wrap(
            keras.optimizers.Adam(0.05, **options, **({"gradient_accumulation_steps": 2} if accumulate > 1 else {}))
        )
        alone.compile(optimizer=own, loss=runs.cross_entropy())
        for start in [0, 8, 16, 24] * 2:
            alone.train_on_batch(x[start : start + 8], y[start : start + 8])
    finally:
        keras.mixed_precision.set_global_policy("float32")
    return {
        "kind": type(model.optimizer).__name__,
        "scale": scale_of(model.optimizer),
        "state": runs.state(model, model.optimizer),
        "far": runs.distance(runs.values(model.weights), runs.values(alone.weights), before),
        "after": after,
    }


def check_skipped(results, tolerance):
    first, second = results
    assert first["kind"].startswith("LossScaleOptimizer")
    assert first["scale"] == second["scale"] == 2.0**13  # halved in both epochs
    assert first["state"] == second["state"]
    assert first["after"] == second["after"]
    assert first["far"] <= tolerance
    assert first["after"][1] == first["after"][0] != first["after"][2]


CASES = [
    pytest.param("float32", {}, marks=pytest.mark.slow),
    pytest.param("float32", {"clipnorm": 0.05}, marks=pytest.mark.slow),
    ("mixed_float16", {"global_clipnorm": 0.1}),
]


@pytest.mark.parametrize("ranks", [*EVERYWHERE, *ON_HOROVOD], indirect=True)
@pytest.mark.parametrize(("policy", "options"), CASES)
def test_an_overflow_on_one_rank_makes_all_skip(ranks, policy, options):
    check_skipped(ranks.run(trained, policy, options), 1e-4 if policy == "float32" else 2e-2)


@pytest.mark.parametrize("ranks", EVERYWHERE, indirect=True)
def test_an_overflow_leaves_accumulation_in_step(ranks):
    def body():
        import keras

        return trained("float32", {"clipnorm": 0.05}, accumulate=2) if hasattr(keras, "ops") else None

    results = ranks.run(body)
    if results[0] is None:
        pytest.skip("Keras 2 optimizers cannot accumulate")
    first, second = results
    assert first["scale"] == second["scale"] == 2.0**13
    assert first["state"] == second["state"]
    assert first["far"] <= 1e-4


@pytest.mark.parametrize("ranks", ALL, indirect=True)
def test_mixed_bfloat16_equals_the_same_batches_in_one_process(ranks):
    def body():
        import keras
        import keras_runs as runs

        import hvdkit.keras as hk

        runs.fresh()
        hk.init()
        keras.utils.set_random_seed(1)
        keras.mixed_precision.set_global_policy("mixed_bfloat16")
        try:
            data, model, alone = runs.samples(40), net(), net()
            before = runs.values(model.weights)
            runs.start(alone, before)
            model.compile(hk.distribute(keras.optimizers.SGD(0.2, momentum=0.9), model), runs.cross_entropy())
            model.fit(hk.shard(data, 4, seed=runs.SEED), epochs=2, shuffle=False, verbose=0)
            passes = {"gradient_accumulation_steps": 2} if hasattr(keras, "ops") else {}
            alone.compile(keras.optimizers.SGD(0.2, momentum=0.9, **passes), runs.cross_entropy())
            for block in runs.blocks(40, 8, 2):
                # the ranks' batches one after another, since half precision rounds otherwise in a larger one
                for indices in (block[0::2], block[1::2]) if passes else (block,):
                    alone.train_on_batch(data[0][indices], data[1][indices])
        finally:
            keras.mixed_precision.set_global_policy("float32")
        far = runs.distance(runs.values(model.weights), runs.values(alone.weights), before)
        kinds = {str(value.dtype) for value in runs.values(model.weights)}
        return runs.state(model, model.optimizer), far, kinds, bool(passes)

    (state, far, kinds, exact), (other, *_) = ranks.run(body)
    assert state == other
    assert kinds == {"float32"}
    assert far <= (1e-5 if exact else 5e-2)


@pytest.mark.parametrize("ranks", ON_HOROVOD, indirect=True)
def test_what_would_hide_an_overflow_is_refused(ranks):
    def body():
        import keras

        import hvdkit.keras as hk
        from hvdkit.errors import RecipeError

        hk.init()
        keras.mixed_precision.set_global_policy("mixed_float16")
        found = []
        try:
            for optimizer, options in (
                (scaled(keras.optimizers.SGD(0.1)), {"compression": "fp16"}),
                (keras.optimizers.SGD(0.1), {}),
            ):
                try:
                    hk.distribute(optimizer, **options)
                except RecipeError as error:
                    found.append(str(error))
        finally:
            keras.mixed_precision.set_global_policy("float32")
        return found

    for found in ranks.run(body):
        assert found == [
            "compression 'fp16' limits gradients, which hides the overflow that loss scaling looks for; use "
            "compression='none', or train in bfloat16",
            "under mixed_float16 compile puts a LossScaleOptimizer around this optimizer; give the model too: "
            "distribute(optimizer, model)",
        ]


@pytest.mark.parametrize("ranks", [*ALL, *on("tf", engines=("mpi",))], indirect=True)
def test_precision_of_a_recipe(ranks):
    def body(framework):
        import keras_runs as runs

        import hvdkit
        from hvdkit.errors import RecipeError

        runs.fresh()
        recipe = hvdkit.Recipe(
            model=net, data=hvdkit.Data(train=runs.samples(40), validation=runs.samples(9, seed=8)),
            optimizer=hvdkit.SGD(0.1, momentum=0.9), batch_size=4, epochs=3, metrics=("accuracy",), seed=runs.SEED,
        )  # fmt: skip
        found = {}
        for precision in ("fp32", "bf16", "fp16"):
            trainer = hvdkit.apply(recipe.replace(precision=precision), framework)
            losses = trainer.fit().values("val_loss")
            kinds = {str(value.dtype) for value in runs.values(trainer.model.weights)}
            state = runs.state(trainer.model, trainer.optimizer)
            found[precision] = (losses, kinds, type(trainer.optimizer).__name__, state)
        try:
            both = hvdkit.Distribute(accumulate=2)
            hvdkit.apply(recipe.replace(precision="fp16", distribute=both), framework)
        except (RecipeError, hvdkit.errors.ModelError) as error:
            refused = str(error)
        return found, refused

    (found, refused), (other, _) = ranks.run(body, ranks.combination.framework)
    assert found == other
    whole = found["fp32"][0]
    for precision, tolerance in (("bf16", 0.1), ("fp16", 0.02)):
        losses, kinds, optimizer, _ = found[precision]
        assert losses != whole
        assert losses == pytest.approx(whole, rel=tolerance)
        assert kinds == {"float32"}
        assert optimizer.startswith("LossScaleOptimizer") == (precision == "fp16")
    assert "accumulat" in refused
