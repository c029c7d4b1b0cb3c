"""From the broadcast on, every rank draws random numbers of its own."""

from __future__ import annotations

import pytest
from keras_kinds import EVERYWHERE


def draws():
    """Return numbers from every generator that a data function may use."""
    import random

    import keras
    import numpy as np

    found = {"python": random.random(), "numpy": float(np.random.random())}
    if hasattr(keras, "random"):
        found["keras"] = float(keras.ops.convert_to_numpy(keras.random.uniform(())))
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        found["tensorflow"] = float(tf.random.uniform(()))
        numbers = tf.data.Dataset.range(1).map(lambda _: tf.random.uniform(()))
        found["tf.data"] = float(next(iter(numbers)))
    if keras.backend.backend() == "torch":
        import torch

        found["torch"] = float(torch.rand(()))
    return found


@pytest.mark.parametrize("ranks", EVERYWHERE, indirect=True)
def test_r34_after_the_broadcast_ranks_draw_numbers_of_their_own(ranks):
    def body(apart, used):
        import keras
        import keras_runs as runs

        import hvdkit.keras as hk

        runs.fresh()
        rank = hk.init().rank
        keras.utils.set_random_seed(7 + (rank if apart else 0))
        model, optimizer = runs.small_net(), keras.optimizers.SGD(0.1)
        before = draws() if used else {}
        hk.broadcast(model, optimizer)
        once = draws()
        # what plain Keras draws there
        keras.utils.set_random_seed(7 + (rank if apart else 0))
        runs.small_net()
        if used:
            draws()
        plain = draws()
        return before, once, plain

    for used in (False, True):
        (before, first, plain), (same, second, other_plain) = ranks.run(body, False, used)
        assert before == same
        assert first == plain  # rank 0 goes on as it would alone
        assert plain == other_plain
        assert all(first[name] != second[name] for name in first), (first, second)
    (_, first, plain), (_, second, other_plain) = ranks.run(body, True, True)
    assert first == plain
    assert second == other_plain  # a rank that was seeded apart is left alone
    assert all(first[name] != second[name] for name in first)
