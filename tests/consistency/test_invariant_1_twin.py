"""Invariant 1: on two processes TensorFlow's loop is its twin, one process that runs the micro-batches in rank order.

The twin in torch is in tests/backends/torch/test_torch_equivalence.py; Keras's ``fit`` multiplies by the number of
samples before the sum and is held to the reference alone (test_matrix.py).
"""

from __future__ import annotations

import pytest
from cells import pairs

import hvdkit

COUNT, BATCH, EPOCHS = 21, 4, 10


def body():
    import keras_runs as runs
    from twins import tf_twin

    runs.fresh()
    data = runs.samples(COUNT)
    recipe = hvdkit.Recipe(
        model=runs.small_net,
        data=hvdkit.Data(train=data),
        optimizer=hvdkit.Adam(0.01),
        batch_size=BATCH,
        seed=runs.SEED,
    )
    trainer = hvdkit.apply(recipe, "tf")
    before = runs.values(trainer.model.weights)
    trainer.fit(EPOCHS)
    twin = runs.start(runs.small_net(), before)
    tf_twin(twin, runs.stock(recipe.optimizer, 0.02), data, BATCH, EPOCHS)
    return [[value.tobytes() for value in runs.values(model.weights)] for model in (trainer.model, twin)]


@pytest.mark.parametrize("ranks", pairs(("tf",)), indirect=True)
def test_short_batches_in_tensorflow_equal_the_twin_bit_for_bit(ranks):
    (mine, twin), (other, _) = ranks.run(body)
    assert mine == other == twin
