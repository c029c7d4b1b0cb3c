"""``hvdkit verify train.py`` for Keras with ``compile`` and ``fit``."""

from __future__ import annotations

import pytest
from ranks import on
from script_runs import assert_named, assert_verified, edited, named, verify_script
from verify_runs import ROOT

pytestmark = pytest.mark.processes

CONVERTED = ("", "classes_", "gan_", "go_on_", "two_inputs_", "vae_")

SCRIPT = """
import numpy as np
from hvdkit.keras_common.compat import keras as of_this_environment
import hvdkit.keras as hk

keras = of_this_environment()
world = hk.init()
hk.pin()
keras.utils.set_random_seed(0)
x = np.random.normal(size=(51, 6)).astype("float32")
y = (x.sum(1) > 0).astype("int64")
batches = hk.shard((x, y), 4)

layers = keras.layers
model = keras.Sequential([keras.Input((6,)), layers.Dense(8, "tanh"), layers.Dropout(0.3), layers.Dense(2)])
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
optimizer = keras.optimizers.SGD(hk.scale_lr(0.05), momentum=0.9)
optimizer = hk.distribute(optimizer, model)
model.compile(optimizer, loss_of)
callbacks = [hk.callbacks.BroadcastGlobalVariablesCallback(0), hk.callbacks.MetricAverageCallback()]
history = model.fit(batches, epochs=3, callbacks=callbacks, verbose=0)
if world.rank == 0:
    for epoch, mean in enumerate(history.history["loss"]):
        print(f"epoch {epoch + 1}: loss {mean:.6f}")

hk.save("weights.npz", model, optimizer)
"""

FAULTS = {
    "no distribute": ([("optimizer = hk.distribute(optimizer, model)\n", "")], "distribute", "distribut"),
    "no broadcast": (
        [("hk.callbacks.BroadcastGlobalVariablesCallback(0), ", "")],
        "broadcast",
        "hk.broadcast is not called",
    ),
    "the loss is a rank's own": ([(", hk.callbacks.MetricAverageCallback()", "")], "average", "is rank 0's own"),
    "saved by every rank": (
        [("hk.save(", "model.save('own.keras'); hk.save(")],
        "checkpoint",
        "rank 1 writes own.keras too",
    ),
}

LEGITIMATE = {
    "as it is": [],
    "BatchNorm": [("layers.Dropout(0.3)", "layers.BatchNormalization()")],
    "arrays for fit": [
        ("hk.shard((x, y), 4)", "x[:48], y[:48]"),
        ("fit(batches", "fit(*batches, batch_size=4"),
    ],
}


@pytest.mark.parametrize("combination", on("keras", ("mpi",)))
@pytest.mark.parametrize("name", named(FAULTS, ()))
def test_a_forgotten_step_is_named(name, combination, tmp_path):
    edits, step, words = FAULTS[name]
    (tmp_path / "train.py").write_text(edited(SCRIPT, *edits))
    report, finished = verify_script("train.py", combination, tmp_path)
    assert_named(report, finished, step, words)
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


@pytest.mark.parametrize("combination", on("keras", ("mpi",)))
@pytest.mark.parametrize("name", named(LEGITIMATE, ("as it is",)))
def test_a_right_script_is_verified(name, combination, tmp_path):
    (tmp_path / "train.py").write_text(edited(SCRIPT, *LEGITIMATE[name]))
    report, finished = verify_script("train.py", combination, tmp_path)
    assert_verified(report, finished)


@pytest.mark.parametrize("combination", on("keras", ("mpi",)))
@pytest.mark.parametrize("name", named(CONVERTED, ("", "two_inputs_")))
def test_a_converted_script_is_verified(name, combination, tmp_path):
    report, finished = verify_script(ROOT / "examples" / "convert" / f"keras_{name}hvdkit.py", combination, tmp_path)
    assert_verified(report, finished)
