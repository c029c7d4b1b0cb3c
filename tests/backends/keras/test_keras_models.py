"""Models of many kinds: steps of their own, late built ones, random ones, and those that are refused."""

from __future__ import annotations

import pytest
from keras_kinds import EVERYWHERE, ON_HOROVOD, ON_TENSORFLOW
from ranks import launch_fresh, on

import hvdkit


@pytest.mark.parametrize("ranks", [*EVERYWHERE, *ON_HOROVOD], indirect=True)
@pytest.mark.parametrize("built", [True, False])
def test_b08_d07_a_train_step_of_its_own_in_a_model_built_early_or_late(ranks, built):
    def body():
        import keras
        import keras_parts
        import keras_runs as runs

        import hvdkit.keras as hk

        runs.fresh()
        world = hk.init()
        keras.utils.set_random_seed(world.rank)  # ranks start different
        model, data, states, before = keras_parts.OwnStep(), runs.samples(32), [], []
        if built:
            model(data[0][:1])
        model.compile(optimizer=hk.distribute(keras.optimizers.SGD(0.2, momentum=0.9), model))

        class Watch(keras.callbacks.Callback):
            def on_train_batch_begin(self, batch, logs=None):
                if built and not before:
                    before.extend(runs.values(model.weights))

            def on_train_batch_end(self, batch, logs=None):
                runs.settle(model)
                states.append(runs.state(model, model.optimizer))

        callbacks = [hk.callbacks.BroadcastGlobalVariablesCallback(), Watch()]
        batches = hk.shard(data, 4, seed=runs.SEED)
        model.fit(batches, epochs=3, callbacks=callbacks, shuffle=False, verbose=0)
        if not built:
            return states, 0.0
        alone = runs.start(runs.small_net(), before)
        runs.plain(alone, keras.optimizers.SGD(0.2, momentum=0.9), data, runs.blocks(32, 8, 3))
        return states, runs.distance(runs.values(model.weights), runs.values(alone.weights), before)

    (states, far), (others, _) = ranks.run(body)
    assert states == others
    assert len({tuple(state) for state in states}) == 12
    assert far <= 1e-4


@pytest.mark.parametrize("ranks", EVERYWHERE, indirect=True)
def test_a_loop_of_its_own_over_a_keras_optimizer(ranks):
    def body():
        import keras
        import keras_runs as runs

        import hvdkit.keras as hk

        runs.fresh()
        hk.init()
        keras.utils.set_random_seed(1)
        data, model = runs.samples(32), runs.small_net()
        before = runs.values(model.weights)
        optimizer = hk.distribute(keras.optimizers.Adam(0.02), model)
        batches = hk.shard(data, 4, seed=runs.SEED)
        for epoch in range(3):
            batches.set_epoch(epoch)
            for x, y in batches:
                gradients = runs.gradients(model, x, y)
                optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        alone = runs.start(runs.small_net(), before)
        runs.plain(alone, keras.optimizers.Adam(0.02), data, runs.blocks(32, 8, 3))
        far = runs.distance(runs.values(model.weights), runs.values(alone.weights), before)
        return runs.state(model, optimizer), far

    (state, far), (other, _) = ranks.run(body)
    assert state == other
    assert far <= 1e-4


@pytest.mark.parametrize("ranks", EVERYWHERE, indirect=True)
def test_e06_what_distribute_returns_is_the_same_optimizer_and_saves_as_such(ranks, tmp_path):
    def body(folder):
        import keras
        import keras_runs as runs

        import hvdkit.keras as hk

        runs.fresh()
        world = hk.init()
        model, optimizer = runs.small_net(), keras.optimizers.Adam(0.01)
        plain = (type(optimizer), optimizer.get_config())
        same = hk.distribute(optimizer, model) is optimizer
        model.compile(optimizer=optimizer, loss="sparse_categorical_crossentropy")
        model.fit(hk.shard(runs.samples(16), 4), shuffle=False, verbose=0)
        if world.rank == 0:
            model.save(f"{folder}/model.keras")
        return same, (type(model.optimizer), model.optimizer.get_config()) == plain, runs.values(optimizer.variables)

    results = ranks.run(body, str(tmp_path))
    assert all(same and unchanged for same, unchanged, _ in results)
    script = (
        "import sys, keras, numpy as np\n"
        f"model = keras.models.load_model({str(tmp_path / 'model.keras')!r})\n"
        "assert not any(name.split('.')[0] in ('hvdkit', 'horovod') for name in sys.modules)\n"
        "print(type(model.optimizer).__name__, int(model.optimizer.iterations), len(model.optimizer.variables))\n"
        "model.fit(np.zeros((4, 6)), np.zeros(4), verbose=0)\n"
    )
    done = launch_fresh(script, env=dict(ranks.combination.env))
    assert done.code == 0, done.stderr
    assert done.stdout.split() == ["Adam", "2", str(len(results[0][2]))]


@pytest.mark.parametrize("ranks", EVERYWHERE, indirect=True)
def test_what_cannot_be_distributed_is_refused(ranks):
    def body():
        import keras
        import keras_runs as runs

        import hvdkit.keras as hk
        from hvdkit.errors import HvdkitError

        runs.fresh()
        hk.init()
        three = hasattr(keras, "ops")
        data, (x, y) = hvdkit.Data(train=runs.samples(16)), runs.samples(16)

        def apply(model=runs.small_net, train=data, **options):
            options = {"optimizer": hvdkit.SGD(0.1), **options}
            return hvdkit.apply(hvdkit.Recipe(model=model, data=train, batch_size=4, **options), "keras")

        def compiled_by_xla():
            model = runs.small_net()
            optimizer = hk.distribute(keras.optimizers.SGD(0.1), model)
            model.compile(optimizer=optimizer, loss=runs.cross_entropy(), jit_compile=True)

        distributed = hk.distribute(keras.optimizers.SGD(0.1))
        calls = {
            "twice": lambda: hk.distribute(distributed),
            "foreign": lambda: hk.distribute(object()),
            "softmax": lambda: apply(lambda: runs.small_net(ending="softmax")),
            "label": lambda: apply(train=hvdkit.Data(train=(x, y + 1))),
            "negative": lambda: apply(train=hvdkit.Data(train=(x, y - 1))),
            "model": lambda: apply(model=lambda: None),
        }
        if keras.backend.backend() == "tensorflow":
            calls["xla"] = compiled_by_xla
        if not three:
            calls["legacy"] = lambda: hk.distribute(keras.optimizers.legacy.SGD(0.1))
        found = {}
        for name, call in calls.items():
            try:
                call()
            except HvdkitError as error:
                found[name] = str(error)
        return keras.__version__, keras.backend.backend(), found

    for version, library, found in ranks.run(body):
        expected = {
            "twice": "this optimizer is distributed already; call distribute once for each optimizer",
            "foreign": f"object (builtins) is no optimizer of Keras {version}; take model and optimizer from the same "
            "Keras",
            "softmax": "the model's outputs are probabilities, but this loss takes logits; remove the softmax or "
            "sigmoid at its end",
            "label": "label 3 is out of range; the model has 3 outputs, which allow labels 0 to 2",
            "negative": "label -1 is out of range; the model has 3 outputs, which allow labels 0 to 2",
            "model": f"Recipe.model must build a model of Keras {version}, it gave builtins.NoneType",
            "xla": "XLA cannot compile the reduction of gradients on TensorFlow; compile the model with "
            "jit_compile=False",
            "legacy": "SGD is a legacy optimizer; use the one of keras.optimizers",
        }
        if not version.startswith("2"):
            del expected["legacy"]
        if library != "tensorflow":
            del expected["xla"]
        assert found == expected


@pytest.mark.parametrize("ranks", [*EVERYWHERE, *on("tf", engines=("mpi",))], indirect=True)
def test_random_state_is_each_ranks_own_and_statistics_are_shared(ranks, tmp_path):
    def body(framework, path):
        import keras_parts
        import keras_runs as runs
        import numpy as np

        runs.fresh()
        recipe = hvdkit.Recipe(
            model=keras_parts.noisy_net,
            data=hvdkit.Data(train=runs.samples(32), validation=runs.samples(8)),
            optimizer=hvdkit.SGD(0.1),
            batch_size=4,
        )
        trainer = hvdkit.apply(recipe, framework)
        drop = trainer.model.layers[-2]
        masks = [np.array(drop(np.ones((1, 64), "float32"), training=True)) for _ in range(2)]
        seeds = runs.values([v for v in trainer.model.variables if "seed" in getattr(v, "path", "")])
        trainer.fit(epochs=1)
        after_fit = runs.values(trainer.model.weights)
        trainer.step(tuple(part[trainer.world.rank :: 2][:4] for part in recipe.data.train))
        local = runs.values(trainer.model.non_trainable_variables)
        trainer.save(path)
        return masks, seeds, after_fit, local, runs.values(trainer.model.weights)

    first, second = ranks.run(body, ranks.combination.framework, str(tmp_path / "file.npz"))
    same = [[(a == b).all() for a, b in zip(x, y, strict=True)] for x, y in zip(first, second, strict=True)]
    masks, seeds, after_fit, local, saved = same
    assert not any(masks)
    assert not any(seeds)
    assert all(after_fit)
    assert not all(local)  # BatchNorm's are each rank's own between
    assert all(saved)


@pytest.mark.parametrize("ranks", ON_TENSORFLOW, indirect=True)
def test_b06_xla_is_switched_off_or_refused_before_a_step(ranks):
    def body():
        import warnings

        import keras
        import keras_runs as runs
        import tensorflow as tf

        import hvdkit.keras as hk
        from hvdkit.errors import ModelError

        runs.fresh()
        rank, (x, y), found = hk.init().rank, runs.samples(16), {}
        for jit in ("auto", False, True) if hasattr(keras, "ops") else (False, True):
            keras.utils.set_random_seed(1)
            model = runs.small_net()
            model.compile(hk.distribute(keras.optimizers.SGD(0.1), model), runs.cross_entropy(), jit_compile=jit)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                model.fit(x[rank::2], y[rank::2], batch_size=4, shuffle=False, verbose=0)
            found[str(jit)] = (runs.state(model, model.optimizer), [str(entry.message) for entry in caught])

        optimizer = hk.distribute(keras.optimizers.SGD(0.1))
        before = runs.values(model.weights)[0].tobytes()

        @tf.function(jit_compile=True)
        def step():
            with tf.GradientTape() as tape:
                loss = runs.cross_entropy()(y, model(x))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

        try:
            step()
        except ModelError as error:
            refused = str(error)
        return found, refused, before == runs.values(model.weights)[0].tobytes()

    (found, refused, unchanged), (other, _, _) = ranks.run(body)
    assert found == other
    assert unchanged
    states = [state for state, _ in found.values()]
    assert states == states[:1] * len(states)
    off = "jit_compile is off: XLA cannot compile the reduction of gradients"
    assert [message for message in found["True"][1] if "jit" in message] == [off]
    assert not any("jit" in message for message in found["False"][1])
    assert refused == (
        "XLA cannot compile the reduction of gradients on TensorFlow; use tf.function without jit_compile=True"
    )


@pytest.mark.parametrize("ranks", EVERYWHERE, indirect=True)
def test_r37_layers_that_one_rank_built_before_make_no_difference(ranks, tmp_path):
    def body(path):
        import keras
        import keras_parts
        import keras_runs as runs
        from complaints import complaint

        import hvdkit.keras as hk

        runs.fresh()
        rank = hk.init().rank
        for _ in range(3 if rank == 0 else 0):
            keras_parts.noisy_net()
            keras.optimizers.Adam(0.1)
        keras.utils.set_random_seed(rank)
        model, other = keras_parts.noisy_net(), runs.small_net()
        optimizer = hk.distribute(keras.optimizers.Adam(0.1), model)
        hk.broadcast(model, optimizer)
        sent = runs.as_bytes([*model.trainable_variables, *optimizer.variables])
        model.compile(optimizer, runs.cross_entropy(), metrics=[keras.metrics.SparseTopKCategoricalAccuracy(1)])
        x, y = runs.samples(16)
        callbacks = [hk.callbacks.BroadcastGlobalVariablesCallback(0), hk.callbacks.MetricAverageCallback()]
        model.fit(x[rank::2], y[rank::2], batch_size=4, callbacks=callbacks, verbose=0)
        hk.save(path, model, optimizer)
        hk.restore(path, model, optimizer)
        trained = runs.as_bytes([*model.trainable_variables, *optimizer.variables])
        return sent, trained, complaint(hk.broadcast, model if rank else other)

    (sent, trained, text), (others, other_trained, other_text) = ranks.run(body, str(tmp_path / "state.npz"))
    assert sent == others
    assert trained == other_trained
    assert text == other_text
    assert text.startswith("ModelError: the model differs between ranks: 'model/")
