"""Arrays that ``fit`` is given whole on every rank are shared out, or refused by name."""

from __future__ import annotations

import numpy as np
import pytest
from keras_kinds import EVERYWHERE, ON_HOROVOD
from ranks import slowly


def whole_and_shared(split):
    """Fit by whole arrays, by hvdkit's own batches, and on one process by plain updates; runs on every rank."""
    import keras
    import keras_runs as runs

    import hvdkit.keras as hk

    runs.fresh()
    world = hk.init()
    keras.utils.set_random_seed(1)
    (x, y), held_out = runs.samples(45), runs.samples(11, seed=9)
    start = runs.values(runs.small_net().weights)
    results, models = [], []
    kept = 36 if split else 45
    for how in ("whole", "sharded"):
        model = runs.start(runs.small_net(), start)
        models.append(model)
        optimizer = hk.distribute(keras.optimizers.Adam(0.02), model)
        metrics = ["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(1, name="top")]
        model.compile(optimizer, runs.cross_entropy(), metrics=metrics)
        validation = (x[kept:], y[kept:]) if split else held_out
        if how == "whole":
            data = {"x": x, "y": y, "batch_size": 9}
            data |= {"validation_split": 0.2} if split else {"validation_data": held_out}
        else:
            data = {"x": hk.shard((x[:kept], y[:kept]), 9, seed=0)}
            data |= {"validation_data": tuple(part[world.rank :: 2] for part in validation)}
        callbacks = [hk.callbacks.MetricAverageCallback()]
        results.append(model.fit(**data, epochs=3, callbacks=callbacks, verbose=0).history)
    far = [runs.distance(runs.values(model.weights), runs.values(models[0].weights), start) for model in models]
    return results, runs.as_bytes(models[0].weights), far


@pytest.mark.parametrize("split", [False, True], ids=["validation data", "validation split"])
@pytest.mark.parametrize("ranks", [*EVERYWHERE, *slowly(ON_HOROVOD)], indirect=True)
def test_r26_arrays_that_all_ranks_hold_whole_are_shared_out(ranks, split):
    (results, state, far), (others, other_state, _) = ranks.run(whole_and_shared, split)
    assert state == other_state
    assert far == [0.0, 0.0]
    assert results == others
    assert results[0] == results[1]
    assert set(results[0]) == {"loss", "accuracy", "top", "val_loss", "val_accuracy", "val_top"}


@pytest.mark.parametrize("ranks", [*EVERYWHERE, *slowly(ON_HOROVOD)], indirect=True)
def test_r26_r39_what_is_counted_and_what_cannot_be_shared_out(ranks):
    def body():
        import keras
        import keras_runs as runs
        from complaints import complaint

        import hvdkit.keras as hk

        runs.fresh()
        rank, (x, y) = hk.init().rank, runs.samples(32)
        histories = []

        def fit(*data, metrics=(), average=True, weights=None, **options):
            keras.utils.set_random_seed(1)
            model = runs.small_net()
            model.compile(hk.distribute(keras.optimizers.SGD(0.1), model), runs.cross_entropy(), metrics=list(metrics))
            callbacks = [hk.callbacks.MetricAverageCallback()] if average else []
            histories.append(model.fit(*data, callbacks=callbacks, verbose=0, **options).history)

        class Seen(keras.metrics.Sum):
            def __init__(self):
                super().__init__(name="seen")

            def update_state(self, y_true, y_pred, sample_weight=None):
                return super().update_state(keras_ones_like(y_true))

        def keras_ones_like(labels):
            return labels * 0 + 1

        fit(x, y, batch_size=4, metrics=[Seen()], validation_data=runs.samples(11, seed=9))
        seen = {name: values[0] for name, values in histories[0].items() if "seen" in name}
        short = 12 if rank == 0 else 20
        texts = {
            "no labels": complaint(fit, x),
            "weights": complaint(fit, x, y, sample_weight=np.ones(32, "float32")),
            "weights needed": complaint(fit, x[:9], y[:9], batch_size=4),
            "other lengths": complaint(fit, x[:short], y[:short], batch_size=4),
            "few": complaint(fit, x, y, validation_data=(x[:1], y[:1])),
        }
        base = getattr(keras.utils, "PyDataset", None) or keras.utils.Sequence

        class Batches(base):
            def __init__(self, first, step, number):
                super().__init__()
                self.first, self.step, self.number = first, step, number

            def __len__(self):
                return self.number

            def __getitem__(self, index):
                start = 4 * (self.first + self.step * index)
                return x[start : start + 4], y[start : start + 4]

        texts |= {
            "same batches": complaint(fit, Batches(0, 1, 8)),
            "more batches": complaint(fit, Batches(rank, 2, 4 - rank)),
            "own batches": complaint(fit, Batches(rank, 2, 4), shuffle=False),
            "held out": complaint(fit, x, y, validation_data=Batches(0, 1, 8)),
        }
        if runs.library() == "tensorflow":
            import tensorflow as tf

            held_out = tf.data.Dataset.from_tensor_slices(runs.samples(11, seed=9)).batch(3)
            fit(x, y, batch_size=4, metrics=[Seen()], validation_data=held_out)
            seen["val_seen"] = histories[-1]["val_seen"][0]
        hk.init(guard=False)
        fit(x, y, batch_size=4, metrics=[Seen()])
        hk.init(guard=True)
        return seen, texts, histories[-1]["seen"]

    first, second = ranks.run(body)
    assert first == second
    seen, texts, unguarded = first
    assert seen == {"seen": 32.0, "val_seen": 11.0}
    assert unguarded == [64.0]
    assert "all ranks hold the same x, and each would train on all of them" in texts["no labels"]
    assert "all ranks hold the same x, y and sample_weight" in texts["weights"]
    assert "9 samples do not share out evenly over 2 ranks" in texts["weights needed"]
    assert "rank 0 has 12 samples in 3 batches but rank 1 has 20 in 5" in texts["other lengths"]
    assert "fewer validation samples than the 2 processes" in texts["few"]
    assert "Batches gives all ranks the same batches, and each would train on all" in texts["same batches"]
    assert "rank 0 has 4 batches but rank 1 has 3" in texts["more batches"]
    assert texts["own batches"] == ""
    assert "the validation data, a Batches, give all ranks the same batches" in texts["held out"]


@pytest.mark.parametrize("ranks", [*EVERYWHERE, *slowly(ON_HOROVOD)], indirect=True)
def test_r39_class_weights_go_with_samples_that_do_not_divide(ranks):
    def body(count, one_hot):
        import keras
        import keras_runs as runs

        import hvdkit.keras as hk

        runs.fresh()
        hk.init()
        keras.utils.set_random_seed(1)
        (x, y), weights = runs.samples(count), {0: 0.5, 1: 2.0, 2: 1.0}
        model, alone = runs.small_net(), runs.small_net()
        start = runs.values(model.weights)
        runs.start(alone, start)
        loss = keras.losses.CategoricalCrossentropy(from_logits=True) if one_hot else runs.cross_entropy()
        y = keras.utils.to_categorical(y, runs.CLASSES) if one_hot else y
        model.compile(hk.distribute(keras.optimizers.Adam(0.02), model), loss)
        batches = hk.shard((x, y), 4, seed=runs.SEED)
        model.fit(batches, epochs=2, class_weight=weights, shuffle=False, verbose=0)
        alone.compile(keras.optimizers.Adam(0.02), loss)
        for rows in runs.blocks(count, 8, 2):
            alone.train_on_batch(x[rows], y[rows], class_weight=weights)
        return runs.distance(runs.values(model.weights), runs.values(alone.weights), start)

    for count, one_hot in ((25, False), (17, True), (29, False)):
        assert max(ranks.run(body, count, one_hot)) <= 1e-4
