"""Ranks count by what Keras's losses divide by: masks and weights give what one process gives on the union."""

from __future__ import annotations

import numpy as np
import pytest
from keras_kinds import EVERYWHERE, ON_HOROVOD

LENGTH = 5


def tagger(outputs=1, mask=True):
    """Return a net over sequences, which masks zeros."""
    import keras

    inputs = keras.Input((LENGTH,), dtype="int32")
    x = keras.layers.Embedding(7, 4, mask_zero=mask)(inputs)
    x = keras.layers.Dense(6, activation="tanh", kernel_regularizer=keras.regularizers.L2(0.1))(x)
    heads = [keras.layers.Dense(3)(x) for _ in range(outputs)]
    return keras.Model(inputs, heads[0] if outputs == 1 else heads)


def classifier():
    import keras_runs as runs

    return runs.small_net(penalty=0.1)


def sequences(lengths):
    """Return words of which the last are masked, and labels."""
    generator = np.random.default_rng(4)
    words = generator.integers(1, 7, (len(lengths), LENGTH))
    words[np.arange(LENGTH) >= np.array(lengths)[:, None]] = 0
    return words.astype("int32"), generator.integers(0, 3, words.shape)


def cases():
    """Return (name, model, loss, x, y, weights or class weights of both ranks' batches together), 4 samples a rank."""
    import keras
    import keras_runs as runs

    keras3 = hasattr(keras, "ops")
    cross, flat = keras.losses.SparseCategoricalCrossentropy, runs.samples(8)
    labels = np.array([0, 1, 0, 1, 2, 2, 2, 2])
    zero = np.array([1.0, 0.5, 2.0, 0.25, 0, 0, 0, 0], "float32")
    per_entry = np.random.default_rng(5).uniform(0, 2, (8, LENGTH)).astype("float32")
    uneven, empty = sequences([5, 5, 4, 5, 1, 2, 1, 1]), sequences([5, 3, 4, 1, 0, 0, 0, 0])
    ignored = np.where(np.arange(LENGTH) < np.array([5, 5, 5, 5, 1, 2, 1, 1])[:, None], uneven[1], -1)
    full = np.maximum(uneven[0], 1)

    def logits(**options):
        return cross(from_logits=True, **options)

    found = [
        ("all weights zero on one rank", classifier, logits(), *flat, {"sample_weight": zero}),
        ("class weights zero on one rank", classifier, logits(), flat[0], labels, {"class_weight": {0: 1, 1: 3, 2: 0}}),
        ("a function", classifier, lambda y, p: logits()(y, p), *flat, {}),
        ("mask", tagger, logits(), *uneven, {}),
        ("mask, all masked on one rank", tagger, logits(), *empty, {}),
        ("mask and weights", tagger, logits(), *uneven, {"sample_weight": per_entry}),
        ("ignored class", tagger, logits(ignore_class=-1), full, ignored, {}),
        ("ignored class and mask", tagger, logits(ignore_class=-1), uneven[0], ignored, {}),
    ]
    if keras3:
        mean = logits(reduction="mean_with_sample_weight")
        one = np.array([1.0, 0.5, 2.0, 0.25, 3, 0, 0, 0], "float32")
        found += [
            ("mean of weights", classifier, mean, *flat, {"sample_weight": one}),
            ("mean of weights, zero on one rank", classifier, mean, *flat, {"sample_weight": zero}),
            ("mean of weights and mask", tagger, mean, *uneven, {"sample_weight": per_entry}),
            ("all masked on all ranks", tagger, logits(), *sequences([0] * 8), {}),
        ]
    return found


def trained():
    """Train each case for two updates on the ranks, and on one process; return the distances and the losses."""
    import keras
    import keras_runs as runs

    import hvdkit.keras as hk

    runs.fresh()
    world = hk.init()
    mine = slice(4 * world.rank, 4 * world.rank + 4)
    found = {}
    for name, build, loss, x, y, weights in cases():
        keras.utils.set_random_seed(1)
        model, alone = build(), build()
        before = runs.values(model.weights)
        runs.start(alone, before)
        model.compile(hk.distribute(keras.optimizers.SGD(0.5), model), loss)
        alone.compile(keras.optimizers.SGD(0.5), loss)
        own = {key: value if isinstance(value, dict) else value[mine] for key, value in weights.items()}
        for _ in range(2):
            model.train_on_batch(x[mine], y[mine], **own)
            whole = alone.train_on_batch(x, y, **weights)
        far = runs.distance(runs.values(model.weights), runs.values(alone.weights), before)
        found[name] = far, float(np.ravel(whole)[0])
    return found


@pytest.mark.parametrize("ranks", [*EVERYWHERE, *ON_HOROVOD], indirect=True)
def test_r11_a_rank_counts_by_what_keras_divides_its_loss_by(ranks):
    for found in ranks.run(trained):
        assert {name: far for name, (far, _) in found.items() if not far <= 1e-4} == {}
        assert all(np.isfinite(loss) for _, loss in found.values())


def refused():
    import keras
    import keras_runs as runs

    import hvdkit.keras as hk
    from hvdkit.errors import ModelError

    runs.fresh()
    hk.init()
    cross = keras.losses.SparseCategoricalCrossentropy
    x, y = sequences([5, 1, 2, 3])

    def total(y_true, y_pred):
        values = cross(from_logits=True, reduction="none")(y_true, y_pred)
        return keras.ops.mean(values) if hasattr(keras, "ops") else keras.backend.mean(values)

    def summed(y_true, y_pred):
        values = cross(from_logits=True, reduction="none")(y_true, y_pred)
        return keras.ops.sum(values) if hasattr(keras, "ops") else keras.backend.sum(values)

    def run(build, loss, targets, accumulate=1):
        model = build()
        before = runs.values(model.weights)
        try:
            if accumulate > 1 and not hasattr(keras, "ops"):
                raise ModelError("divides by the sum of a mask")  # Keras 2 cannot accumulate
            model.compile(hk.distribute(keras.optimizers.SGD(0.5), model, accumulate=accumulate), loss)
            model.train_on_batch(x, targets)
        except ModelError as error:
            assert [a.tobytes() for a in before] == [a.tobytes() for a in runs.values(model.weights)]
            return str(error)
        return "trained"

    return [
        run(tagger, cross(from_logits=True, reduction="sum"), y),
        run(tagger, cross(from_logits=True, reduction="none"), y),
        run(lambda: tagger(2), cross(from_logits=True), [y, y]),
        run(tagger, total, y),
        run(lambda: tagger(mask=False), summed, y),
        run(tagger, cross(from_logits=True), y, accumulate=2),
        run(lambda: tagger(mask=False), total, y),
    ]


@pytest.mark.parametrize("ranks", EVERYWHERE, indirect=True)
def test_r11_losses_of_which_no_mean_over_ranks_is_right_are_refused(ranks):
    for found in ranks.run(refused):
        assert "has reduction='sum' and so sums over the batch" in found[0]
        assert "has reduction='none' and so sums over the batch" in found[1]
        assert "one of 2, divides by the sum of a mask" in found[2]
        assert "returns one number for a batch with a mask" in found[3]
        assert "'summed' returns the sum of a batch" in found[4]
        assert "divides by the sum of a mask" in found[5]
        assert found[6] == "trained"
