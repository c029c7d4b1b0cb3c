"""Callbacks given to fit: order, decisions, and files of rank 0 alone."""

from __future__ import annotations

import numpy as np
import pytest
from keras_kinds import EVERYWHERE, ON_JAX, ON_TENSORFLOW, ON_TORCH
from ranks import slowly


@pytest.mark.parametrize("ranks", EVERYWHERE, indirect=True)
def test_b02_c02_c03_what_would_make_ranks_differ_is_refused_before_the_first_step(ranks):
    def body():
        import keras
        import keras_runs as runs

        import hvdkit.keras as hk
        from hvdkit.errors import RecipeError

        runs.fresh()
        rank, (x, y) = hk.init().rank, runs.samples(16)
        kinds, broadcast, average = keras.callbacks, hk.callbacks.BroadcastGlobalVariablesCallback, None
        average = hk.callbacks.MetricAverageCallback
        steps = []

        def fit(*callbacks, seed=0, built=True, compiled=None, **options):
            keras.utils.set_random_seed(seed)
            model = runs.small_net() if built else keras.Sequential([keras.layers.Dense(3)])
            watch = kinds.LambdaCallback(on_train_batch_end=lambda batch, logs: steps.append(batch))
            optimizer = hk.distribute(keras.optimizers.SGD(0.1), model)
            model.compile(optimizer, runs.cross_entropy(), **(compiled or {}))
            model.fit(x, y, epochs=2, callbacks=[*callbacks, watch], verbose=0, **options)

        stop = kinds.EarlyStopping("loss")
        first = {"validation_data": (x, y)} if rank == 0 else {}
        calls = {
            "stop before": lambda: fit(broadcast(), stop, average()),
            "log before": lambda: fit(broadcast(), kinds.CSVLogger("never.csv"), average()),
            "alone": lambda: fit(broadcast(), kinds.ReduceLROnPlateau("loss")),
            "backup": lambda: fit(broadcast(), kinds.BackupAndRestore("never")),
            "nan": lambda: fit(broadcast(), kinds.TerminateOnNaN()),
            "unbuilt": lambda: fit(built=False),
            "weights": lambda: fit(seed=rank),
            "c02": lambda: fit(average(), **first),
            "c03": lambda: fit(average(), *([stop] if rank == 0 else [])),
            "b02": lambda: fit(compiled={"experimental_run_tf_function": False}),
        }
        found = {}
        for name, call in calls.items():
            try:
                call()
            except RecipeError as error:
                found[name] = str(error)
        assert not steps
        fit(average())  # equal weights do without a broadcast
        assert steps
        return found

    expected = {
        "stop before": "EarlyStopping stands before MetricAverageCallback and would see this rank's metrics; put it "
        "behind",
        "log before": "CSVLogger stands before MetricAverageCallback and would see this rank's metrics; put it behind",
        "alone": "ReduceLROnPlateau would decide on each rank by itself; put "
        "hvdkit.keras.callbacks.MetricAverageCallback() before it",
        "backup": "BackupAndRestore would go on from another epoch on each rank; use hvdkit.keras.save and restore",
        "nan": "TerminateOnNaN would stop one rank and leave the others waiting; look at the averaged loss in a "
        "callback behind MetricAverageCallback",
        "unbuilt": "the model is not built, so ranks would start from weights of their own; put "
        "BroadcastGlobalVariablesCallback(0) among the callbacks",
        "weights": "rank 1 starts from other weights than rank 0; put BroadcastGlobalVariablesCallback(0) among the "
        "callbacks, or call hvdkit.keras.broadcast(model, optimizer) first",
        "c02": "fit is called with validation 'with' on rank 0 but 'none' on rank 1",
        "c03": "fit is called with callbacks ['MetricAverageCallback', 'EarlyStopping'] on rank 0 but "
        "['MetricAverageCallback'] on rank 1",
        "b02": "compile has no experimental_run_tf_function any more; leave it out, gradients are reduced in the "
        "optimizer",
    }
    assert ranks.run(body) == [expected, expected]


@pytest.mark.parametrize("ranks", [*ON_TENSORFLOW, *ON_TORCH, *slowly(ON_JAX)], indirect=True)
def test_e01_c03_files_are_rank_0s_and_decisions_are_common(ranks, tmp_path):
    """The validation loss of each rank goes its own way; all stop by the mean, and lower the rate by the mean."""

    def body(folder):
        import importlib.util
        import pathlib

        import keras
        import keras_runs as runs

        import hvdkit.keras as hk

        runs.fresh()
        rank, (x, y) = hk.init().rank, runs.samples(32)
        keras.utils.set_random_seed(rank)
        model, mine = runs.small_net(), pathlib.Path(folder) / str(rank)
        mine.mkdir()
        model.compile(hk.distribute(keras.optimizers.Adam(0.2), model), runs.cross_entropy(), metrics=["accuracy"])
        kinds = keras.callbacks
        installed = importlib.util.find_spec("tensorboard") and keras.backend.backend() == "tensorflow"
        boards = [kinds.TensorBoard(str(mine / "board"))] if installed else []
        callbacks = [
            hk.callbacks.BroadcastGlobalVariablesCallback(),
            hk.callbacks.MetricAverageCallback(),
            kinds.ReduceLROnPlateau("val_loss", factor=0.5, patience=1, min_delta=0.05),
            kinds.EarlyStopping("val_loss", patience=3, restore_best_weights=True),
            kinds.ModelCheckpoint(str(mine / "best.weights.h5"), save_weights_only=True, save_best_only=True),
            kinds.CSVLogger(str(mine / "log.csv")),
            *boards,
        ]
        held_out = runs.samples(12, seed=9 + rank)
        history = model.fit(
            hk.shard((x, y), 4), epochs=30, validation_data=held_out, callbacks=callbacks, shuffle=False, verbose=0
        ).history
        rates = history.get("learning_rate") or history["lr"]
        local = model.evaluate(*held_out, verbose=0)[0]
        files = sorted(path.name for path in mine.iterdir())
        return history["val_loss"], [float(rate) for rate in rates], runs.state(model, model.optimizer), files, local

    (first, rates, state, files, local), (second, other_rates, other_state, none, other) = ranks.run(
        body, str(tmp_path)
    )
    assert first == second
    assert rates == other_rates
    assert state == other_state
    assert local != other
    assert 3 < len(first) < 30
    assert rates[-1] < 0.2
    assert len(first) - 1 - int(np.argmin(first)) == 3
    assert {"best.weights.h5", "log.csv"} <= set(files)
    assert none == []
    assert len((tmp_path / "0" / "log.csv").read_text().splitlines()) == len(first) + 1


# Keras on PyTorch has no steps_per_execution
@pytest.mark.parametrize("ranks", [*ON_TENSORFLOW, *ON_JAX], indirect=True)
def test_several_steps_per_execution_equal_one_process(ranks):
    def body():
        import keras
        import keras_runs as runs

        import hvdkit.keras as hk

        runs.fresh()
        hk.init()
        keras.utils.set_random_seed(1)
        data, model, alone = runs.samples(32), runs.small_net(), runs.small_net()
        before = runs.values(model.weights)
        runs.start(alone, before)
        model.compile(
            hk.distribute(keras.optimizers.Adam(0.02), model), runs.cross_entropy(), steps_per_execution=2
        )  # fmt: skip
        model.fit(hk.shard(data, 4, seed=runs.SEED), epochs=2, shuffle=False, verbose=0)
        runs.plain(alone, keras.optimizers.Adam(0.02), data, runs.blocks(32, 8, 2))
        return runs.distance(runs.values(model.weights), runs.values(alone.weights), before)

    assert max(ranks.run(body)) <= 1e-4


@pytest.mark.parametrize("ranks", EVERYWHERE, indirect=True)
def test_statistics_of_batchnorm_are_shared_at_the_end_of_an_epoch(ranks):
    def body():
        import keras
        import keras_parts
        import keras_runs as runs

        import hvdkit.keras as hk

        runs.fresh()
        rank = hk.init().rank
        model, seen = keras_parts.noisy_net(), []
        model.compile(hk.distribute(keras.optimizers.SGD(0.1), model), runs.cross_entropy())

        def look(_, logs):
            runs.settle(model)
            seen.append(runs.values(model.layers[2].weights[2:])[0].tobytes())

        note = keras.callbacks.LambdaCallback(on_train_batch_end=look, on_epoch_end=look)
        callbacks = [hk.callbacks.BroadcastGlobalVariablesCallback(), hk.callbacks.MetricAverageCallback(), note]
        x, y = runs.samples(16, seed=rank)
        model.fit(x, y, batch_size=8, epochs=1, callbacks=callbacks, verbose=0)
        return seen

    first, second = ranks.run(body)
    assert first[-1] == second[-1]
    assert first[-2] != second[-2]
