"""Metrics over all ranks by their own sums and counts."""

from __future__ import annotations

import numpy as np
import pytest
from keras_kinds import EVERYWHERE, ON_HOROVOD
from ranks import on

import hvdkit

ALL = [*EVERYWHERE, *on("tf", engines=("mpi",))]


@pytest.mark.parametrize("ranks", [*EVERYWHERE, *ON_HOROVOD], indirect=True)
def test_d01_metrics_are_exact_for_unequal_shards(ranks):
    def body():
        import keras
        import keras_runs as runs

        import hvdkit.keras as hk

        runs.fresh()
        world = hk.init()
        generator = np.random.default_rng(4)
        score = generator.uniform(-3, 3, 100).astype("float32")
        label = np.where(np.arange(100) < 90, score > 0, score <= 0).astype("float32")
        mine = slice(0, 90) if world.rank == 0 else slice(90, 100)
        inputs = keras.Input((1,))
        model = keras.Model(inputs, keras.layers.Activation("sigmoid")(inputs))
        model.compile(loss="binary_crossentropy", metrics=["accuracy", keras.metrics.AUC(name="auc")])
        average = hk.callbacks.MetricAverageCallback()
        model.evaluate(score[mine, None], label[mine, None], verbose=0, callbacks=[average])
        whole = model.evaluate(score[:, None], label[:, None], verbose=0, return_dict=True)
        means = hk.average({"accuracy": [1.0, 0.0][world.rank]}, count=[90, 10][world.rank])
        return average.validation, whole, means

    for found, whole, means in ranks.run(body):
        assert found["accuracy"] == pytest.approx(0.9, abs=1e-6)
        assert found == pytest.approx(whole, rel=1e-5)
        assert means == {"accuracy": pytest.approx(0.9)}


@pytest.mark.parametrize("ranks", EVERYWHERE, indirect=True)
@pytest.mark.parametrize("floatx", ["float32", "float64"])
def test_b10_every_callback_behind_sees_the_same_python_floats(ranks, tmp_path, floatx):
    def body(folder):
        import csv
        import pathlib

        import keras
        import keras_runs as runs

        import hvdkit.keras as hk

        runs.fresh()
        world = hk.init()
        keras.backend.set_floatx(floatx)
        try:
            inputs = keras.Input((1,))
            model = keras.Model(inputs, keras.layers.Dense(1, kernel_initializer="zeros")(inputs))
            value = keras.metrics.MeanMetricWrapper(lambda y, p: p * 0 + float(world.rank), name="rank")
            model.compile(optimizer=hk.distribute(keras.optimizers.SGD(0.0), model), loss="mse", metrics=[value])
            path, stop = f"{folder}/{world.rank}.csv", keras.callbacks.EarlyStopping("val_loss", patience=1)
            callbacks = [hk.callbacks.MetricAverageCallback(), keras.callbacks.CSVLogger(path), stop]
            target = np.full((4, 1), world.rank * 2.0)
            history = model.fit(
                np.ones((4, 1)), target, validation_data=(np.ones((2, 1)), target[:2]),
                epochs=5, batch_size=4, callbacks=callbacks, verbose=0,
            ).history  # fmt: skip
        finally:
            keras.backend.set_floatx("float32")
        log = pathlib.Path(path)
        return history, list(csv.DictReader(log.open())) if log.exists() else None

    (first, logged), (second, none) = ranks.run(body, str(tmp_path))
    assert first == second
    assert first == {"rank": [0.5, 0.5], "loss": [2.0, 2.0], "val_rank": [0.5, 0.5], "val_loss": [2.0, 2.0]}
    assert {type(value) for values in first.values() for value in values} == {float}
    assert none is None  # rank 0 alone writes
    assert [float(row["rank"]) for row in logged] == [0.5, 0.5]
    assert [float(row["val_loss"]) for row in logged] == [2.0, 2.0]


@pytest.mark.parametrize("ranks", EVERYWHERE, indirect=True)
def test_a_metric_that_cannot_be_added_up_is_refused(ranks):
    def body():
        import keras_parts
        import keras_runs as runs

        from hvdkit.errors import ModelError

        runs.fresh()
        data = runs.samples(16)
        recipe = hvdkit.Recipe(
            model=runs.small_net,
            data=hvdkit.Data(train=data),
            optimizer=hvdkit.SGD(0.1),
            metrics=(keras_parts.Largest(),),
            batch_size=4,
        )
        try:
            hvdkit.apply(recipe, "keras").fit()
        except ModelError as error:
            return str(error)

    for message in ranks.run(body):
        assert message == (
            "metric 'largest' (Largest) keeps its own state, which hvdkit cannot add up over ranks; derive it from "
            "keras.metrics.Mean or Sum, or give MetricAverageCallback a rule for it"
        )


@pytest.mark.parametrize("ranks", ALL, indirect=True)
@pytest.mark.parametrize(("count", "accumulate"), [(29, 1), (25, 1), (41, 4)])
def test_loss_and_metrics_of_an_epoch_equal_one_process(ranks, count, accumulate):
    """At a rate of 0 the loss of an epoch is that of the whole set, by whatever batches."""

    def body(framework):
        import keras
        import keras_runs as runs

        runs.fresh()
        if accumulate > 1 and not hasattr(keras, "ops"):
            return None
        data, held_out = runs.samples(count), runs.samples(7, seed=8)
        recipe = hvdkit.Recipe(
            model=runs.small_net,
            data=hvdkit.Data(train=data, validation=held_out),
            optimizer=hvdkit.SGD(0.0),
            metrics=("accuracy",),
            batch_size=4,
            distribute=hvdkit.Distribute(accumulate=accumulate),
        )
        trainer = hvdkit.apply(recipe, framework)
        record = trainer.fit().epochs[0]
        expected = {}
        for prefix, (x, y) in (("", data), ("val_", held_out)):
            outputs = trainer.predict(x)
            expected[f"{prefix}accuracy"] = float((outputs.argmax(1) == y).mean())
            expected[f"{prefix}loss"] = float(runs.cross_entropy()(y, outputs))
        return {name: record[name] for name in expected}, expected, trainer.evaluate(held_out)

    results = ranks.run(body, ranks.combination.framework)
    if results[0] is None:
        pytest.skip("Keras 2 optimizers cannot accumulate")
    for found, expected, evaluated in results:
        assert found == pytest.approx(expected, rel=1e-5)
        assert evaluated == pytest.approx({name: expected[f"val_{name}"] for name in ("loss", "accuracy")}, rel=1e-5)


@pytest.mark.parametrize("ranks", ALL, indirect=True)
def test_c03_all_ranks_stop_after_the_same_epoch(ranks):
    def body(framework):
        import keras_runs as runs

        runs.fresh()
        recipe = hvdkit.Recipe(
            model=runs.small_net,
            data=hvdkit.Data(train=runs.samples(64), validation=runs.samples(9, seed=1)),
            optimizer=hvdkit.Adam(0.05),
            metrics=("accuracy",),
            batch_size=4,
            epochs=12,
            stop_at={"accuracy": 0.7},
        )
        return hvdkit.apply(recipe, framework).fit().values("val_accuracy")

    first, second = ranks.run(body, ranks.combination.framework)
    assert first == second
    assert len(first) < 12
    assert first[-1] >= 0.7
    assert all(value < 0.7 for value in first[:-1])


@pytest.mark.parametrize("ranks", EVERYWHERE, indirect=True)
def test_metrics_of_many_kinds_are_exact_for_unequal_shards(ranks):
    def body():
        import keras
        import keras_parts
        import keras_runs as runs

        import hvdkit.keras as hk
        from hvdkit.errors import RecipeError

        runs.fresh()
        rank = hk.init().rank
        generator = np.random.default_rng(4)
        score = generator.uniform(0, 1, (60, 3)).astype("float32")
        label = np.eye(3, dtype="float32")[generator.integers(0, 3, 60)]
        mine = slice(0, 47) if rank == 0 else slice(47, 60)
        kinds = keras.metrics
        metrics = [kinds.AUC(name="auc"), kinds.MeanIoU(3, sparse_y_true=False, sparse_y_pred=False, name="iou")]
        metrics += [
            kinds.F1Score(name="f1"),
            kinds.PrecisionAtRecall(0.5, name="par"),
            kinds.CosineSimilarity(name="c"),
        ]
        metrics.append(keras_parts.Largest())
        inputs = keras.Input((3,))
        model = keras.Model(inputs, keras.layers.Activation("linear")(inputs))
        model.compile(loss="mse", metrics=metrics)
        average = hk.callbacks.MetricAverageCallback(rules={"largest": "max"})
        model.evaluate(score[mine], label[mine], batch_size=8, verbose=0, callbacks=[average])
        whole = model.evaluate(score, label, batch_size=8, verbose=0, return_dict=True)
        try:
            hk.callbacks.MetricAverageCallback(rules={"largest": "mean"})
        except RecipeError as error:
            refused = str(error)
        return average.validation, {name: np.array(value) for name, value in whole.items()}, refused

    for found, whole, refused in ranks.run(body):
        assert len(whole) >= 6
        assert found.keys() == whole.keys()
        for name, value in whole.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-5, err_msg=name)
        assert refused == "the rule of metric 'largest' is 'mean'; it must be one of sum, max, min"
