"""Several kinds of Keras in one environment: which of them a model and an optimizer belong to."""

from __future__ import annotations

import importlib.util

import pytest
from keras_kinds import ON_TENSORFLOW
from ranks import on

LEGACY = on("keras", engines=("mpi",), env={"TF_USE_LEGACY_KERAS": "1"})
needs_tf_keras = pytest.mark.skipif(importlib.util.find_spec("tf_keras") is None, reason="tf_keras is not installed")


def trained(model_of, optimizer_of):
    """Train a model of one Keras with an optimizer of another on every rank; return the version and what came of it."""
    import importlib

    import keras
    import numpy as np
    import tensorflow as tf

    import hvdkit.keras as hk
    from hvdkit.errors import ModelError

    hk.init()
    library, other = (
        tf.keras if name == "tf.keras" else importlib.import_module(name) for name in (model_of, optimizer_of)
    )
    model = library.Sequential([library.layers.Dense(1)])
    model.build((None, 2))
    try:
        model.compile(hk.distribute(other.optimizers.SGD(0.1), model), "mse")
    except ModelError as error:
        return keras.__version__, str(error)
    callbacks = [hk.callbacks.BroadcastGlobalVariablesCallback()]
    model.fit(np.ones((2, 2)), np.ones((2, 1)), callbacks=callbacks, verbose=0)
    return keras.__version__, "trained"


@pytest.mark.parametrize("kind", ["keras", "tf.keras"])
@pytest.mark.parametrize("ranks", ON_TENSORFLOW, indirect=True)
def test_b09_keras_and_tf_keras_of_tensorflow_are_taken(ranks, kind):
    assert [outcome for _, outcome in ranks.run(trained, kind, kind)] == ["trained", "trained"]


@needs_tf_keras
@pytest.mark.parametrize("ranks", ON_TENSORFLOW, indirect=True)
@pytest.mark.parametrize(
    ("model_of", "optimizer_of", "refused"),
    [
        ("keras", "tf_keras", "SGD (tf_keras.src.optimizers.sgd) is no optimizer"),
        ("tf_keras", "tf_keras", "SGD (tf_keras.src.optimizers.sgd) is no optimizer"),
        ("tf_keras", "keras", "Sequential (tf_keras.src.engine.sequential) is no model"),
    ],
)
def test_b09_objects_of_tf_keras_beside_keras_3_are_refused_by_name(ranks, model_of, optimizer_of, refused):
    for version, outcome in ranks.run(trained, model_of, optimizer_of):
        assert outcome == f"{refused} of Keras {version}; take model and optimizer from the same Keras"


@needs_tf_keras
@pytest.mark.parametrize("ranks", LEGACY, indirect=True)
def test_b09_the_legacy_variable_makes_tf_keras_of_tf_keras(ranks):
    assert [outcome for _, outcome in ranks.run(trained, "keras", "keras")] == ["trained", "trained"]
    for _, outcome in ranks.run(trained, "tf.keras", "tf.keras"):
        assert "is no optimizer of Keras 3" in outcome
