"""Models with sub-models, several optimizers and a ``train_step`` of their own."""

from __future__ import annotations

import numpy as np
import pytest
from keras_kinds import ON_HOROVOD, ON_TENSORFLOW, ON_TORCH


def adversaries(count, way):
    """Fit on the ranks by callbacks or by ``hk.broadcast``, and on one process by plain Keras; runs on every rank."""
    import keras
    import keras_parts
    import keras_runs as runs

    import hvdkit.keras as hk

    runs.fresh()
    world = hk.init()
    rows = np.random.default_rng(1).normal(size=(count, 6)).astype("float32")
    keras.utils.set_random_seed(world.rank)
    model, kinds = keras_parts.Adversaries(), keras.optimizers
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    own = runs.values(model.weights)
    model.built = runs.library() == "torch"  # without, Keras on torch wants a call
    optimizers = [kinds.Adam(hk.scale_lr(0.01 + world.rank)), kinds.SGD(hk.scale_lr(0.05), momentum=0.5)]
    for optimizer in optimizers:
        hk.distribute(optimizer, model)
    model.compile(*optimizers, loss)
    callbacks = [hk.callbacks.MetricAverageCallback()]
    if way == "verb":
        hk.broadcast(model)
    else:
        callbacks.append(hk.callbacks.BroadcastGlobalVariablesCallback(0))
    fitted = {"epochs": 3, "shuffle": False, "verbose": 0}
    model.fit(rows[world.rank :: 2], batch_size=4, callbacks=callbacks, **fitted)

    alone = runs.start(keras_parts.Adversaries(), world.broadcast_object(own))
    alone.built = runs.library() == "torch"
    alone.compile(kinds.Adam(0.02), kinds.SGD(0.1, momentum=0.5), loss)
    alone.fit(rows, batch_size=8, **fitted)
    slots = [*model.d_optimizer.variables, *model.g_optimizer.variables]
    return {
        "own": [value.tobytes() for value in own],
        "state": runs.as_bytes([*model.weights, *slots]),
        "distance": runs.distance(runs.values(model.weights), runs.values(alone.weights), world.broadcast_object(own)),
    }


@pytest.mark.parametrize("way", ["callback", "verb"])
@pytest.mark.parametrize("ranks", [*ON_TENSORFLOW, *ON_HOROVOD, *ON_TORCH], indirect=True)
def test_r38_sub_models_with_an_optimizer_each_are_fitted_as_by_one_process(ranks, way):
    first, second = ranks.run(adversaries, 27, way)  # the last batch has two samples on rank 0 and one on rank 1
    assert first["own"] != second["own"]
    assert first["state"] == second["state"]
    assert first["distance"] <= 1e-4
    assert second["distance"] <= 1e-4
