"""Inputs and targets that are trees of arrays are trained on as one array is."""

from __future__ import annotations

import numpy as np
import pytest
from cells import every_kind, pairs

import hvdkit
from hvdkit.recipe.trees import map_tree

FORMS = {
    "tuple": lambda x: (x[:, :2], x[:, 2:]),
    "list": lambda x: [x[:, :2], x[:, 2:]],
    "dict": lambda x: {"left": x[:, :2], "right": x[:, 2:]},
}


def joined_torch():
    """Return a torch model of one layer that takes one array, or the two halves of it."""
    import torch

    class Joined(torch.nn.Linear):
        def forward(self, x):
            parts = [x] if isinstance(x, torch.Tensor) else list(x.values() if isinstance(x, dict) else x)
            return super().forward(torch.cat(parts, 1))

    model = Joined(6, 3)
    torch.nn.init.zeros_(model.weight)
    torch.nn.init.zeros_(model.bias)
    return model


def joined_keras(form):
    """Return the Keras model of one layer for inputs of a form; None for one array."""
    import keras

    dense = keras.layers.Dense(3, kernel_initializer="zeros")
    if form is None:
        inputs = keras.Input((6,))
        return keras.Model(inputs, dense(inputs))
    halves = [keras.Input((width,), name=name) for name, width in (("left", 2), ("right", 4))]
    outputs = dense(keras.layers.Concatenate()(halves))
    return keras.Model(dict(zip(("left", "right"), halves, strict=True)) if form == "dict" else halves, outputs)


def weights(framework, form):
    """Train on a form of the inputs, or on one array if None; return the weights. Runs on every rank."""
    import case_parts as parts

    x, y = parts.samples(27)
    held_out = parts.samples(5)
    shaped = FORMS[form] if form else (lambda array: array)
    recipe = hvdkit.Recipe(
        model=joined_torch if framework == "torch" else (lambda: joined_keras(form)),
        data=hvdkit.Data(train=(shaped(x), y), validation=(shaped(held_out[0]), held_out[1])),
        optimizer=hvdkit.SGD(0.5),
        metrics=("accuracy",),
        batch_size=4,
        epochs=2,
    )
    trainer = hvdkit.apply(recipe, framework)
    history = trainer.fit()
    shown = {name: value for name, value in history.epochs[-1].items() if "second" not in name}
    outputs = trainer.predict(shaped(held_out[0]))
    return [value.tolist() for value in trainer.weights().values()], shown, outputs.tolist()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("ranks", every_kind(), indirect=True)
def test_two_halves_of_the_inputs_give_the_weights_of_the_whole(ranks, form):
    framework = ranks.combination.framework
    whole = ranks.run(weights, framework, None)
    halves = ranks.run(weights, framework, form)
    for (expected, record, outputs), (found, seen, others) in zip(whole, halves, strict=True):
        for left, right in zip(expected, found, strict=True):
            np.testing.assert_allclose(right, left, rtol=1e-5, atol=1e-7)
            assert np.abs(right).max() > 0.01
        assert seen == pytest.approx(record, rel=1e-5)
        np.testing.assert_allclose(others, outputs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("ranks", pairs(("torch", "tf")), indirect=True)
def test_targets_are_trees_too(ranks):
    def body(framework):
        import case_parts as parts

        hk = parts.verbs(framework)
        hk.init()
        x, y = parts.samples(10)
        batches = hk.shard((x, {"label": y, "both": (y, x)}), 2)
        seen = []
        for batch in batches:
            found = map_tree(np.asarray, batch.targets)
            assert np.array_equal(found["both"][1], np.asarray(batch.inputs))
            assert np.array_equal(found["both"][0], found["label"])
            seen += found["label"].tolist() if batch.count else []
        return seen, sorted(y.tolist())

    results = ranks.run(body, ranks.combination.framework)
    assert sorted(label for seen, _ in results for label in seen) == results[0][1]


@pytest.mark.parametrize("ranks", pairs(), indirect=True)
def test_arrays_of_other_lengths_are_refused_by_name(ranks):
    def body(framework):
        import case_parts as parts

        hk = parts.verbs(framework)
        hk.init()
        x, y = parts.samples(10)
        return parts.complaint(hk.shard, ({"a": x, "b": x[:7]}, y), 2), parts.complaint(hk.shard, (x, y[:9]), 2)

    for tree, pair in ranks.run(body, ranks.combination.framework):
        assert tree == "DataError: the arrays of inputs and targets have 7, 10 samples; give all of them one length"
        assert pair == "DataError: 10 samples but 9 labels; give one label per sample"
