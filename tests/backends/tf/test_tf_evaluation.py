"""Evaluation in TensorFlow."""

from __future__ import annotations

import pytest
from ranks import on

MPI = on("tf", engines=("mpi",))


@pytest.mark.parametrize("ranks", MPI, indirect=True)
def test_r20_a_metric_object_in_a_recipe_begins_anew_in_every_epoch_and_evaluation(ranks):
    def body():
        import keras
        import keras_runs as runs

        import hvdkit

        runs.fresh()
        recipe = hvdkit.Recipe(
            model=runs.small_net,
            data=hvdkit.Data(runs.samples(26), runs.samples(13, seed=4)),
            optimizer=hvdkit.SGD(0.3),
            metrics=("accuracy", keras.metrics.SparseCategoricalAccuracy(name="object")),
            batch_size=4,
            epochs=3,
            stop_at={"accuracy": 1.0},
        )
        trainer = hvdkit.apply(recipe, "tf")
        history = trainer.fit().epochs
        x, y = runs.samples(4)
        return history, trainer.evaluate(), trainer.step((x, y))

    results = ranks.run(body)
    for history, evaluated, step in results:
        assert [record["object"] for record in history] == [record["object"] for record in results[0][0]]
        assert len({record["accuracy"] for record in history}) > 1
        for record in [*history, evaluated, step]:
            assert record["object"] == pytest.approx(record["accuracy"], rel=1e-6)
        for record in history:
            assert record["val_object"] == pytest.approx(record["val_accuracy"], rel=1e-6)
        assert evaluated["object"] == pytest.approx(history[-1]["val_object"], rel=1e-6)


@pytest.mark.parametrize("ranks", MPI, indirect=True)
def test_r20_a_metric_that_keeps_more_than_sums_is_refused_before_training(ranks):
    def body():
        import keras
        import keras_runs as runs
        from complaints import complaint

        import hvdkit

        runs.fresh()

        class Peak(keras.metrics.Mean):
            def __init__(self):
                super().__init__(name="peak")
                self.most = self.add_weight(name="most", initializer="zeros")

        recipe = hvdkit.Recipe(
            model=runs.small_net, data=hvdkit.Data(runs.samples(8)), optimizer=hvdkit.SGD(0.3), metrics=(Peak(),)
        )
        return complaint(lambda: hvdkit.apply(recipe, "tf"))

    for said in ranks.run(body):
        assert said.startswith("ModelError: metric 'peak' (Peak) keeps its own state, which hvdkit cannot add up")


@pytest.mark.parametrize("framework", ["tf", "keras"])
@pytest.mark.parametrize("ranks", MPI, indirect=True)
def test_r23_a_tf_data_set_is_evaluated_once_also_without_a_known_length(ranks, framework):
    def body(framework):
        import importlib

        import numpy as np
        import tensorflow as tf

        hk = importlib.import_module(f"hvdkit.{framework}")
        hk.init()
        data = tf.data.Dataset.range(7).map(lambda number: (number, number))
        unknown = data.filter(lambda number, _: number < 5)
        found = []
        for source in (data, unknown):
            batches = hk.shard(source, 2, train=False)
            seen = [targets.numpy().tolist() for _, targets in batches]
            found.append((seen, hk.gather(np.concatenate(seen)).tolist()))
        return found

    for rank, found in enumerate(ranks.run(body, framework)):
        assert found[0] == ([[[0, 2], [4, 6]], [[1, 3], [5]]][rank], list(range(7)))
        assert found[1] == ([[[0, 2], [4]], [[1, 3]]][rank], list(range(5)))
