"""Loss scaling in a script: broadcast, fit, save and restore, wrapped by hand or by compile."""

from __future__ import annotations

import pytest
from keras_kinds import ON_TENSORFLOW


def scaled_script(folder):
    """Run the eight lines under loss scaling in every way; return the state and what restore brought back."""
    import keras
    import keras_runs as runs
    import numpy as np

    import hvdkit.keras as hk

    runs.fresh()
    world = hk.init()
    scale = (keras.optimizers if hasattr(keras, "ops") else keras.mixed_precision).LossScaleOptimizer
    x, y = runs.samples(32)
    x[9] = np.inf  # of rank 1, in the second batch
    found = {}
    for way in ("by hand", "by compile"):
        keras.mixed_precision.set_global_policy("mixed_float16" if way == "by compile" else "float32")
        try:
            keras.utils.set_random_seed(world.rank)
            model = runs.small_net(dtype=None)
            optimizer = keras.optimizers.Adam(hk.scale_lr(0.01))
            optimizer = scale(optimizer) if way == "by hand" else optimizer
            model.compile(optimizer=hk.distribute(optimizer, model), loss=runs.cross_entropy())
            hk.broadcast(model, model.optimizer)
            callbacks = [hk.callbacks.BroadcastGlobalVariablesCallback(0), hk.callbacks.MetricAverageCallback()]
            callbacks.append(hk.callbacks.LearningRateWarmupCallback(hk.scale_lr(0.01), warmup_epochs=1))
            weights = []

            class Watch(keras.callbacks.Callback):
                def on_train_batch_end(self, batch, logs=None, kept=weights):
                    kept.append([value.tobytes() for value in runs.values(self.model.weights)])

            batches = hk.shard((x, y), 4, shuffle=False)
            model.fit(batches, epochs=2, verbose=0, callbacks=[*callbacks, Watch()])
            hk.save(f"{folder}/{way}.npz", model, model.optimizer, epoch=2)
            state = runs.state(model, model.optimizer)
            model.fit(batches, epochs=1, verbose=0, callbacks=callbacks)
            kept = hk.restore(f"{folder}/{way}.npz", model, model.optimizer)
            again = runs.state(model, model.optimizer)
            held = model.optimizer.dynamic_scale if hasattr(keras, "ops") else model.optimizer.loss_scale
            found[way] = {
                "kind": type(model.optimizer).__name__[:18],
                "state": state,
                "restored": again == state and kept,
                "scale": float(runs.values([held])[0]),
                "skipped": weights[1] == weights[0] != weights[2],
                "weights": weights,
            }
        finally:
            keras.mixed_precision.set_global_policy("float32")
    return found


@pytest.mark.parametrize("ranks", ON_TENSORFLOW, indirect=True)
def test_r39_loss_scaling_in_a_script_of_ones_own(ranks, tmp_path):
    first, second = ranks.run(scaled_script, str(tmp_path))
    assert first == second
    for found in first.values():
        assert found["kind"] == "LossScaleOptimizer"
        assert found["restored"] == {"epoch": 2}
        assert found["scale"] == 2.0**13  # halved in both epochs
        assert found["skipped"]
