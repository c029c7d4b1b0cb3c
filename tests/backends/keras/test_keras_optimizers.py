"""Every optimizer of Keras on two ranks is that optimizer in one process on the union of the batches."""

from __future__ import annotations

import pytest
from keras_kinds import ON_JAX, ON_TENSORFLOW, ON_TORCH
from ranks import slowly

OPTIONS = [
    {"weight_decay": 0.1},
    {"use_ema": True, "ema_momentum": 0.8, "ema_overwrite_frequency": 2},
    {"clipnorm": 0.05},
    {"clipvalue": 0.01},
    {"global_clipnorm": 0.05},
]
THREE_OPTIONS = [
    {"gradient_accumulation_steps": 2},
    {"gradient_accumulation_steps": 2, "clipnorm": 0.02, "weight_decay": 0.1, "use_ema": True},
    {"loss_scale_factor": 8.0},
]


def kinds():
    """Return how to make each optimizer of this Keras."""
    import keras

    base = keras.optimizers.Optimizer
    classes = [
        kind
        for name, kind in sorted(vars(keras.optimizers).items())
        if isinstance(kind, type) and issubclass(kind, base) and kind is not base and "LossScale" not in name
    ]
    found = [
        (kind.__name__, lambda kind=kind: kind(learning_rate=0.02)) for kind in classes if "Multi" not in kind.__name__
    ]
    if any("Multi" in kind.__name__ for kind in classes):
        sgd, adam, choose = keras.optimizers.SGD, keras.optimizers.Adam, keras.optimizers.OptimizerMap
        found.append(
            ("MultiOptimizer", lambda: keras.optimizers.MultiOptimizer(choose(sgd(0.1), {".*bias": adam(0.05)})))
        )
    options = OPTIONS + (THREE_OPTIONS if hasattr(keras, "ops") else [])
    return found + [(str(entry), lambda entry=entry: keras.optimizers.Adam(0.02, **entry)) for entry in options]


def compared(make, by_pairs):
    """Train on this rank's half of every batch, and on the whole of it; return how far apart that is."""
    import keras_runs as runs

    import hvdkit.keras as hk

    x, y = runs.samples(48)
    model, alone = runs.small_net(), runs.small_net()
    before = runs.values(model.weights)
    runs.start(alone, before)
    rank = hk.init().rank

    def train(net, optimizer, rows):
        variables = net.trainable_variables
        gradients = runs.gradients(net, x[rows], y[rows], scale=getattr(optimizer, "scale_loss", None))
        if by_pairs:
            optimizer.apply_gradients(zip(gradients, variables, strict=True))
        else:
            optimizer.apply(gradients, variables)

    distributed, own = hk.distribute(make()), make()
    for step in range(4):
        train(model, distributed, slice(8 * step + rank, 8 * step + 8, 2))
        train(alone, own, slice(8 * step, 8 * step + 8))
    state = runs.as_bytes([*model.weights, *distributed.variables])
    return state, runs.distance(runs.values(model.weights), runs.values(alone.weights), before)


@pytest.mark.parametrize("ranks", [*ON_TENSORFLOW, *ON_TORCH, *slowly(ON_JAX)], indirect=True)
def test_b01_every_optimizer_equals_one_process(ranks):
    def body():
        import keras
        import keras_runs as runs

        runs.fresh()
        keras.utils.set_random_seed(1)
        three = hasattr(keras, "ops")
        return [(name, *compared(make, not three or number % 2)) for number, (name, make) in enumerate(kinds())]

    first, second = ranks.run(body)
    assert len(first) >= 16
    assert {"Adadelta", "Adafactor", "Ftrl", "Lion", "Nadam", "RMSprop"} <= {name for name, _, _ in first}
    for (name, state, far), (_, other, _) in zip(first, second, strict=True):
        assert state == other, name
        assert far <= 1e-4, name
