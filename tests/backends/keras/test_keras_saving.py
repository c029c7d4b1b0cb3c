"""Files of a distributed model: plain Keras opens them, and hvdkit gives them back distributed."""

from __future__ import annotations

import numpy as np
import pytest
from keras_kinds import EVERYWHERE
from ranks import launch_fresh

PLAIN = """
import sys

class Blocked:
    def find_spec(self, name, *_):
        if name.split(".")[0] in ("hvdkit", "horovod"):
            raise ImportError(name)

sys.meta_path.insert(0, Blocked())
import pathlib, keras, numpy as np

folder = pathlib.Path({folder!r})
known = np.load(folder / "known.npz")
x = known["x"]

def check(outputs, name):
    np.testing.assert_allclose(np.asarray(outputs), known["outputs"], rtol=1e-4, atol=1e-6, err_msg=name)

for name in ("model.keras", "model.h5"):
    model = keras.models.load_model(folder / name)
    assert type(model.optimizer).__name__ == "Adam", name
    assert int(model.optimizer.iterations) == 8, name
    check(model.predict(x, verbose=0), name)
    if name == "model.keras" or not hasattr(keras, "ops"):  # Keras 3 forgets the slots in .h5 by itself
        before = len(model.optimizer.variables)
        model.fit(x, np.zeros(len(x)), verbose=0)
        assert len(model.optimizer.variables) == before > 8
model.load_weights(folder / "model.weights.h5")
check(model.predict(x, verbose=0), "weights")
if (folder / "exported").exists():
    import tensorflow as tf
    exported = tf.saved_model.load(str(folder / "exported"))
    check(exported.serve(tf.constant(x)), "exported")
    print("exported")
print("opened")
"""


def train_and_save(folder):
    """Fit two epochs on the ranks; rank 0 writes the model in every format, and what it gives."""
    import keras
    import keras_runs as runs

    import hvdkit.keras as hk

    runs.fresh()
    rank = hk.init().rank
    keras.utils.set_random_seed(1)
    model, (x, y) = runs.small_net(), runs.samples(32)
    optimizer = hk.distribute(keras.optimizers.Adam(0.02), model)
    model.compile(optimizer=optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    callbacks = [hk.callbacks.BroadcastGlobalVariablesCallback(), hk.callbacks.MetricAverageCallback()]
    batches = hk.shard((x, y), 4, seed=runs.SEED)
    model.fit(batches, epochs=2, callbacks=callbacks, shuffle=False, verbose=0)
    if rank == 0:
        model.save(f"{folder}/model.keras")
        model.save(f"{folder}/model.h5")
        model.save_weights(f"{folder}/model.weights.h5")
        if keras.backend.backend() == "tensorflow":
            model.export(f"{folder}/exported")
        np.savez(f"{folder}/known.npz", x=x, outputs=model.predict(x, verbose=0))
    saved = runs.state(model, model.optimizer)
    batches.set_epoch(2)
    model.fit(batches, epochs=3, initial_epoch=2, callbacks=callbacks[1:], shuffle=False, verbose=0)
    return saved, runs.state(model, model.optimizer), hasattr(keras, "ops")


def load_and_go_on(folder, name):
    """Load on a folder that rank 0 alone can see, and train the third epoch."""
    import keras_runs as runs

    import hvdkit.keras as hk

    runs.fresh()
    world = hk.init()
    model = hk.load_model(f"{folder if world.rank == 0 else '/nowhere'}/{name}")
    loaded = runs.state(model, model.optimizer)
    batches = hk.shard(runs.samples(32), 4, seed=runs.SEED)
    batches.set_epoch(2)
    average = hk.callbacks.MetricAverageCallback()
    model.fit(batches, epochs=3, initial_epoch=2, callbacks=[average], shuffle=False, verbose=0)
    return type(model.optimizer).__name__, loaded, runs.state(model, model.optimizer)


@pytest.mark.parametrize("ranks", EVERYWHERE, indirect=True)
def test_e06_plain_keras_opens_what_is_saved_and_hvdkit_goes_on_from_it(ranks, tmp_path):
    (saved, after, keras3), (_, other, _) = ranks.run(train_and_save, str(tmp_path))
    assert after == other
    environment = dict(ranks.combination.env)
    done = launch_fresh(PLAIN.format(folder=str(tmp_path)), env=environment)
    assert done.code == 0, done.stderr
    assert done.stdout.split() == (["opened"] if environment else ["exported", "opened"])
    for name in ("model.keras",) if keras3 else ("model.keras", "model.h5"):
        for kind, loaded, continued in ranks.run(load_and_go_on, str(tmp_path), name):
            assert kind == "Adam"
            assert loaded == saved, name
            assert continued == after, name


@pytest.mark.parametrize("ranks", EVERYWHERE, indirect=True)
def test_s14_what_is_no_whole_or_safe_model_is_refused_on_every_rank(ranks, tmp_path):
    def body(folder):
        import keras
        import keras_runs as runs

        import hvdkit.keras as hk
        from hvdkit.errors import CheckpointError

        runs.fresh()
        rank = hk.init().rank
        if rank == 0:
            runs.small_net().save(f"{folder}/plain.keras")
            unsafe = keras.Sequential([keras.Input((2,)), keras.layers.Lambda(lambda x: x + 1)])
            unsafe.compile("sgd", "mse")
            unsafe.save(f"{folder}/unsafe.keras")
            unsafe.save(f"{folder}/unsafe.h5")
        found = []
        names = ["missing.keras", "model.weights.h5", "plain.keras", "unsafe.keras"]
        for name in [*names, "model.h5" if hasattr(keras, "ops") else "unsafe.h5"]:
            try:
                hk.load_model(f"{folder}/{name}")
            except CheckpointError as error:
                found.append(str(error).replace(folder, "."))
        return found

    first, second = ranks.run(body, str(tmp_path))
    assert first == second
    assert first[:3] == [
        "./missing.keras cannot be read: No such file or directory",
        "./model.weights.h5 is no whole model; give a .keras or .h5 file",
        "./plain.keras holds a model that was not compiled; load it with Keras, then distribute()",
    ]
    assert first[3].startswith("./unsafe.keras cannot be loaded: ")
    old = "./model.h5: Keras 3 does not read an optimizer's state from .h5; save the model as .keras"
    code = (
        "./unsafe.h5 has a Lambda layer, whose code Keras would run from the file; build the model and load its "
        "weights, or save it as .keras without Lambda"
    )
    assert first[4:] in ([code], [old])
