"""Evaluation of what a Keras model was compiled with."""

from __future__ import annotations

import numpy as np
import pytest
from keras_kinds import EVERYWHERE


@pytest.mark.parametrize("ranks", EVERYWHERE, indirect=True)
def test_r23_evaluate_takes_the_compiled_metrics_over_uneven_shards(ranks):
    def body():
        import keras
        import keras_runs as runs
        from complaints import complaint

        import hvdkit.keras as hk

        runs.fresh()
        rank = hk.init().rank
        keras.utils.set_random_seed(1)
        x, _ = runs.samples(7)
        y = (x[:, :1] > 0).astype("float32")
        inputs = keras.Input((runs.FEATURES,))
        hidden = keras.layers.BatchNormalization()(inputs)
        hidden = keras.layers.Dense(1, kernel_regularizer=keras.regularizers.L2(0.1), activation="sigmoid")(hidden)
        model = keras.Model(inputs, hidden)
        nothing = complaint(lambda: hk.evaluate(model, (x, y)))
        model.compile(loss="binary_crossentropy", metrics=["accuracy", keras.metrics.AUC(name="auc")])
        model.layers[1].moving_mean.assign(np.full(runs.FEATURES, float(rank)))
        # no batch on the last rank
        single = hk.evaluate(model, (x[:1], y[:1]))
        found = hk.evaluate(model, hk.shard((x, y), 2, train=False))
        given = hk.evaluate(model, (x, y), "loss", loss=keras.losses.BinaryCrossentropy(), batch_size=3)
        mean = runs.values([model.layers[1].moving_mean])[0]
        whole = model.evaluate(x, y, verbose=0, return_dict=True)
        return nothing, found, given, single, model.evaluate(x[:1], y[:1], verbose=0, return_dict=True), whole, mean

    results = ranks.run(body)
    for nothing, found, given, single, alone, whole, mean in results:
        assert nothing.startswith("RecipeError: evaluate needs to know what to measure")
        assert (mean == 0.5).all()
        assert found == results[0][1]
        assert found == pytest.approx(whole, rel=1e-5)
        assert single == pytest.approx(alone, rel=1e-5)
        assert given == {"loss": pytest.approx(whole["loss"], rel=1e-5)}


@pytest.mark.parametrize("ranks", EVERYWHERE, indirect=True)
def test_r23_fit_validates_on_a_shard_for_evaluation(ranks):
    def body():
        import keras
        import keras_runs as runs

        import hvdkit.keras as hk

        runs.fresh()
        hk.init()
        keras.utils.set_random_seed(1)
        model = runs.small_net()
        model.compile(hk.distribute(keras.optimizers.SGD(0.1), model), runs.cross_entropy(), metrics=["accuracy"])
        held_out = runs.samples(7, seed=9)
        callbacks = [hk.callbacks.BroadcastGlobalVariablesCallback(0), hk.callbacks.MetricAverageCallback()]
        history = model.fit(
            hk.shard(runs.samples(16), 4), validation_data=hk.shard(held_out, 2, train=False), epochs=1, verbose=0,
            callbacks=callbacks,
        ).history  # fmt: skip
        return history, model.evaluate(*held_out, verbose=0, return_dict=True)

    for history, whole in ranks.run(body):
        assert history["val_loss"] == pytest.approx([whole["loss"]], rel=1e-5)
        assert history["val_accuracy"] == pytest.approx([whole["accuracy"]], rel=1e-5)


@pytest.mark.parametrize("ranks", EVERYWHERE, indirect=True)
def test_r20_metrics_that_ranks_cannot_join_are_refused_before_training(ranks):
    def body():
        import keras
        import keras_parts
        import keras_runs as runs
        from complaints import complaint

        import hvdkit
        import hvdkit.keras as hk

        runs.fresh()
        rank = hk.init().rank

        def refused(*metrics):
            recipe = hvdkit.Recipe(
                model=runs.small_net, data=hvdkit.Data(runs.samples(8)), optimizer=hvdkit.SGD(0.3), metrics=metrics
            )
            return complaint(lambda: hvdkit.apply(recipe, "keras"))

        first, second = (keras.metrics.SparseCategoricalAccuracy(name="same") for _ in range(2))
        own = keras.metrics.SparseCategoricalAccuracy(name=f"of_{rank}")
        return refused(keras_parts.Largest()), refused(first, second), refused(own)

    for state, twice, names in ranks.run(body):
        assert state.startswith("ModelError: metric 'largest' (Largest) keeps its own state")
        assert twice.startswith("RecipeError: two metrics are called 'same'")
        assert names.startswith("RecipeError: metrics are loss, of_0 on rank 0 but loss, of_1 on rank 1")
