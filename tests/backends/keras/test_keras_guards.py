"""Steps that a script with ``fit`` forgets, and models that are compiled otherwise on a rank, are found by name."""

from __future__ import annotations

import pytest
from keras_kinds import EVERYWHERE, ON_HOROVOD, ON_TENSORFLOW, ON_TORCH
from ranks import slowly


@pytest.mark.parametrize("ranks", [*EVERYWHERE, *slowly(ON_HOROVOD)], indirect=True)
def test_r21_r35_r36_what_makes_ranks_train_apart_is_refused_by_name(ranks):
    def body():
        import keras
        import keras_runs as runs
        from complaints import complaint

        import hvdkit.keras as hk
        from hvdkit.training import drift as neutral

        rank, (x, y) = hk.init().rank, runs.samples(48)
        kinds, metrics, losses = keras.optimizers, keras.metrics, keras.losses
        entropy, of_shares = runs.cross_entropy(), losses.SparseCategoricalCrossentropy()
        accuracy, crossentropy = metrics.SparseCategoricalAccuracy, metrics.SparseCategoricalCrossentropy

        def sgd(rate=0.1, momentum=0.0):
            return kinds.SGD(rate, momentum=momentum)

        def fit(
            optimizer,
            distributed=True,
            broadcast=True,
            watched=True,
            seed=0,
            loss=entropy,
            metric="accuracy",
            callback=None,
            frozen=False,
            built=0,
        ):
            runs.fresh()
            for _ in range(built):
                runs.small_net()
            keras.utils.set_random_seed(seed)
            model, steps = runs.small_net(frozen=frozen), []
            if distributed:
                hk.distribute(optimizer, model if watched else None)
            callbacks = [hk.callbacks.MetricAverageCallback()]
            if broadcast:
                callbacks.append(hk.callbacks.BroadcastGlobalVariablesCallback(0))
            if callback is not None:
                callbacks.append(callback(model))
            count = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: steps.append(batch))
            model.compile(optimizer, loss, metrics=[metric], jit_compile=False)
            own = x[rank::2], y[rank::2]
            text = complaint(model.fit, *own, batch_size=4, callbacks=[count, *callbacks], verbose=0)
            return text, len(steps)

        def spoil(model):
            def change(batch, logs):
                if batch == 2 and rank == 1:
                    runs.settle(model)
                    weight = model.trainable_variables[0]
                    weight.assign(weight * 1.00001)

            return keras.callbacks.LambdaCallback(on_train_batch_end=change)

        def otherwise(first, second):
            return first if rank == 0 else second

        every, neutral.EVERY = neutral.EVERY, 4
        try:
            found = {
                "nothing": fit(sgd()),
                "nothing, not watched": fit(sgd(), watched=False),
                "built before": fit(sgd(), built=rank, metric=accuracy()),
                "rates that a broadcast brings": fit(sgd(0.1 + rank)),
                "distribute": fit(sgd(), distributed=False),
                "distribute, no broadcast": fit(sgd(), distributed=False, broadcast=False),
                "broadcast": fit(sgd(), broadcast=False, seed=rank, watched=False),
                "broadcast, frozen": fit(sgd(), broadcast=False, seed=rank, watched=False, frozen=True),
                "changed": fit(sgd(), callback=spoil),
                "metrics": fit(sgd(), metric=otherwise(accuracy(), crossentropy(from_logits=True))),
                "metric names": fit(sgd(), metric=otherwise(accuracy(name="a"), accuracy(name="b"))),
                "losses": fit(sgd(), loss=otherwise(entropy, of_shares)),
                "optimizers": fit(otherwise(sgd(), kinds.RMSprop(0.1)), broadcast=False),
                "momentum": fit(sgd(momentum=otherwise(0.0, 0.5)), broadcast=False),
                "rates": fit(sgd(0.1 + rank), broadcast=False),
            }
            hk.init(guard=False)
            found["guard off"] = fit(sgd(), distributed=False)
        finally:
            neutral.EVERY = every
            hk.init(guard=True)
        return found

    first, second = ranks.run(body)
    assert first == second
    alone = (
        "RecipeError: the optimizer (SGD) is not distributed, so every process would train alone; compile the model "
        "with hvdkit.keras.distribute(optimizer, model)"
    )
    alike = "RecipeError: the model is compiled with "
    expected = {
        "nothing": ("", 6),
        "nothing, not watched": ("", 6),
        "built before": ("", 6),
        "rates that a broadcast brings": ("", 6),
        "distribute": (alone, 0),
        "distribute, no broadcast": (alone, 0),
        "broadcast": ("ModelError: the weights differ between ranks before the first update: ", 0),
        "broadcast, frozen": ("ModelError: the weights differ between ranks before the first update: ", 0),
        "changed": ("ModelError: the weights differ between ranks after 4 updates: ", 3),
        "metrics": (alike, 0),
        "metric names": (alike, 0),
        "losses": (alike + "compiled loss", 0),
        "optimizers": (alike + "optimizer 0 'SGD' on rank 0 but 'RMSprop' on rank 1", 0),
        "momentum": (alike + "optimizer 0's momentum 0.0 on rank 0 but 0.5 on rank 1; compile it alike on every", 0),
        "rates": (alike + "optimizer 0's learning rate 0.10000000149011612 on rank 0 but 1.10", 0),
        "guard off": ("", 6),
    }
    for name, (text, steps) in expected.items():
        assert first[name][0].startswith(text), (name, first[name])
        assert bool(first[name][0]) == bool(text), (name, first[name])
        assert first[name][1] == steps, name
    assert "call broadcast(model, optimizer)" in first["broadcast"][0]
    assert "crossentropy" in first["metrics"][0]
    assert "'a'" in first["metric names"][0]
    assert "'b'" in first["metric names"][0]


@pytest.mark.parametrize("ranks", [*ON_TENSORFLOW, *ON_TORCH], indirect=True)
def test_r35_one_of_several_optimizers_that_nobody_distributed_is_found_at_the_first_update(ranks):
    def body():
        import keras
        import keras_parts
        import keras_runs as runs
        import numpy as np
        from complaints import complaint

        import hvdkit.keras as hk

        runs.fresh()
        rank, rows = hk.init().rank, np.random.default_rng(1).normal(size=(24, 6)).astype("float32")
        model, optimizers = keras_parts.Adversaries(), [keras.optimizers.SGD(0.1), keras.optimizers.SGD(0.1)]
        model.built = runs.library() == "torch"
        hk.distribute(optimizers[0], model)
        model.compile(*optimizers, keras.losses.BinaryCrossentropy(from_logits=True))
        return complaint(model.fit, rows[rank::2], batch_size=4, shuffle=False, verbose=0)

    first, second = ranks.run(body)
    assert first == second
    assert first.startswith("ModelError: the weights differ between ranks after 1 updates: ")
    assert "call hvdkit.keras.distribute(optimizer, model) for every optimizer" in first


@pytest.mark.parametrize("ranks", EVERYWHERE, indirect=True)
def test_r35_a_loop_of_ones_own_finds_a_forgotten_step_after_the_first_update(ranks):
    def body():
        import keras
        import keras_runs as runs
        from complaints import complaint

        import hvdkit.keras as hk

        rank, (x, y) = hk.init().rank, runs.samples(24)

        def train(forgotten, taken):
            runs.fresh()
            keras.utils.set_random_seed(rank if forgotten == "broadcast" else 0)
            model, optimizer = runs.small_net(), keras.optimizers.SGD(0.1)
            if forgotten != "distribute":
                hk.distribute(optimizer, model)
            if forgotten != "broadcast":
                hk.broadcast(model, optimizer)
            for start in (0, 8, 16):
                rows = slice(start + rank, start + 8, 2)
                gradients = runs.gradients(model, x[rows], y[rows])
                optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
                taken.append(start)

        found = {}
        for forgotten in ("nothing", "distribute", "broadcast"):
            taken = []
            found[forgotten] = complaint(train, forgotten, taken), len(taken)
        return found

    first, second = ranks.run(body)
    assert first == second
    assert first["nothing"] == ("", 3)
    for name, advice in {"distribute": "call distribute(optimizer)", "broadcast": "call broadcast(model, opt"}.items():
        text, steps = first[name]
        assert text.startswith("ModelError: the weights differ between ranks after 1 updates: ")
        assert advice in text
        assert steps == 1


@pytest.mark.parametrize("ranks", EVERYWHERE, indirect=True)
def test_r35_weights_that_drifted_apart_are_neither_saved_nor_evaluated(ranks, tmp_path):
    def body(folder):
        from pathlib import Path

        import keras
        import keras_runs as runs
        from complaints import complaint

        import hvdkit.keras as hk

        world, data, path = hk.init(), runs.samples(16), f"{folder}/file.npz"
        model = runs.small_net()
        model.compile(hk.distribute(keras.optimizers.SGD(0.1), model), runs.cross_entropy())

        def tried():
            before = Path(path).read_bytes() if Path(path).exists() else b""
            said = [
                complaint(hk.save, path, model),
                complaint(lambda: hk.evaluate(model, data, "accuracy", loss=runs.cross_entropy())),
                complaint(hk.synchronise_statistics, model),
            ]
            world.barrier()
            after = Path(path).read_bytes() if Path(path).exists() else b""
            world.barrier()
            return said, before == after

        kernel = model.trainable_variables[0]
        kernel.assign(kernel + 0.001 * world.rank)
        not_broadcast = tried()
        hk.broadcast(model)
        hk.save(path, model)
        fine = [complaint(hk.synchronise_statistics, model)]
        kernel.assign(kernel + 0.001 * world.rank)
        moved = tried()
        hk.init(guard=False)
        try:
            fine.append(complaint(hk.save, path, model))
        finally:
            hk.init(guard=True)
        return not_broadcast, moved, fine

    first, second = ranks.run(body, str(tmp_path))
    assert first == second
    not_broadcast, moved, fine = first
    for (said, same_file), advice in (
        (not_broadcast, "call broadcast(model, opt"),
        (moved, "something changed them on"),
    ):
        assert same_file
        for text in said:
            assert text.startswith("ModelError: the weights differ between ranks when they are used: ")
            assert advice in text
    assert fine == ["", ""]
