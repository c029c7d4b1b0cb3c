"""``hvdkit verify train.py`` for loops of one's own in TensorFlow."""

from __future__ import annotations

import pytest
from ranks import on
from script_runs import assert_named, assert_verified, edited, named, verify_script
from verify_runs import ROOT

pytestmark = pytest.mark.processes

CONVERTED = ("tf_hvdkit", "tf_two_models_hvdkit")

# 51 samples on 2 ranks in batches of 4: the last update of an epoch is a short one
SCRIPT = """
import numpy as np
import tensorflow as tf
import hvdkit.tf as hk

world = hk.init()
hk.pin()
tf.keras.utils.set_random_seed(0)
x = np.random.normal(size=(51, 6)).astype("float32")
y = (x.sum(1) > 0).astype("int64")
batches = hk.shard((x, y), 4)

layers = tf.keras.layers
model = tf.keras.Sequential(
    [tf.keras.Input((6,)), layers.Dense(8, "tanh"), layers.Dropout(0.3), layers.Dense(2)]
)
loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
optimizer = tf.keras.optimizers.SGD(hk.scale_lr(0.05), momentum=0.9)
optimizer = hk.distribute(optimizer)
hk.broadcast(model, optimizer)


@tf.function(reduce_retracing=True)
def train_step(image, label):
    with tf.GradientTape() as tape:
        loss = loss_of(label, model(image, training=True))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss


for epoch in range(3):
    total, count = 0.0, 0
    for image, label in batches:
        total += float(train_step(image, label)) * batches.count
        count += batches.count
    mean = hk.average(total / count, count)
    found = hk.evaluate(model, (x[:11], y[:11]), "accuracy", loss=loss_of)
    if world.rank == 0:
        print(f"epoch {epoch + 1}: loss {mean:.6f} val_loss {found['loss']:.6f}")

hk.save("weights.npz", model, optimizer)
"""

TAPE = [
    ("optimizer = hk.distribute(optimizer)\n", ""),
    ("    gradients = tape", "    hk.distribute(tape)\n    gradients = tape"),
]

FAULTS = {
    "no distribute": (
        [("optimizer = hk.distribute(optimizer)\n", "")],
        "distribute",
        "hk.distribute is never called for optimizer 0 (SGD)",
    ),
    "no broadcast": ([("hk.broadcast(model, optimizer)\n", "")], "broadcast", "hk.broadcast is not called"),
    "no shard": (
        [
            ("hk.shard((x, y), 4)", "[(x[:4], y[:4]), (x[4:8], y[4:8]), (x[8:12], y[8:12])]"),
            ("batches.count", "len(image)"),
        ],
        "shard",
        "hk.shard is never called",
    ),
    "a loss that is a sum": (
        [("model(image, training=True))", "model(image, training=True)) * tf.cast(tf.shape(image)[0], tf.float32)")],
        "recipe",
        "is the loss a sum",
    ),
    "the loss is a rank's own": ([("hk.average(total / count, count)", "total / count")], "average", "is rank 0's own"),
    "saved by every rank": (
        [("hk.save(", "model.save('own.keras'); hk.save(")],
        "checkpoint",
        "rank 1 writes own.keras too",
    ),
}

LEGITIMATE = {
    "as it is": [],
    "a tape": TAPE,
    "BatchNorm and random numbers": [
        ("layers.Dropout(0.3)", "layers.BatchNormalization()"),
        ("model(image", "model(image + 0.01 * tf.random.normal(tf.shape(image))"),
    ],
}


@pytest.mark.parametrize("combination", on("tf", ("mpi",)))
@pytest.mark.parametrize("name", named(FAULTS, ("the loss is a rank's own",)))
def test_a_forgotten_step_is_named(name, combination, tmp_path):
    edits, step, words = FAULTS[name]
    (tmp_path / "train.py").write_text(edited(SCRIPT, *edits))
    report, finished = verify_script("train.py", combination, tmp_path)
    assert_named(report, finished, step, words)
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


@pytest.mark.slow
@pytest.mark.parametrize("combination", on("tf", ("mpi",)))
@pytest.mark.parametrize("name", list(LEGITIMATE))
def test_a_right_script_is_verified(name, combination, tmp_path):
    (tmp_path / "train.py").write_text(edited(SCRIPT, *LEGITIMATE[name]))
    report, finished = verify_script("train.py", combination, tmp_path)
    assert_verified(report, finished)


@pytest.mark.parametrize("combination", on("tf", ("mpi",)))
@pytest.mark.parametrize("name", CONVERTED)
def test_a_converted_script_is_verified(name, combination, tmp_path):
    report, finished = verify_script(ROOT / "examples" / "convert" / f"{name}.py", combination, tmp_path)
    assert_verified(report, finished)
