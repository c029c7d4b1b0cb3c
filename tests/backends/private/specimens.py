"""Objects of frameworks on which private names are looked for; each is made anew by its name."""

from __future__ import annotations

from typing import Any


def make(name: str) -> Any:
    """Make one by its name."""
    return globals()[name]()


def compiled() -> Any:
    import torch

    return torch.compile(torch.nn.Linear(1, 1))


def layer() -> Any:
    import torch

    return torch.nn.Linear(1, 1)


def stepper() -> Any:
    import torch

    return torch.optim.SGD(layer().parameters(), 0.1)


def scaler() -> Any:
    """Return a gradient scaler that has its scale."""
    import torch

    made = torch.amp.GradScaler("cpu")
    made.scale(torch.ones(1))
    assert made._scale is not None
    return made


def shuffled() -> Any:
    return _numbers().shuffle(4)


def repeated() -> Any:
    return _numbers().repeat()


def batched() -> Any:
    return _numbers().batch(2)


def sharded() -> Any:
    return _numbers().shard(2, 0)


def drawn() -> Any:
    return type(_numbers()).random(seed=1)


def mapped() -> Any:
    return _numbers().map(lambda n: n, num_parallel_calls=2, deterministic=False)


def flattened() -> Any:
    return _numbers().flat_map(type(_numbers()).range)


def interleaved() -> Any:
    return _numbers().interleave(type(_numbers()).range)


def chosen() -> Any:
    return type(_numbers()).choose_from_datasets([_numbers(), _numbers()], _numbers())


def unbatched() -> Any:
    return batched().unbatch()


def bucketed() -> Any:
    return _numbers().group_by_window(lambda n: n % 2, lambda _, window: window.batch(2), window_size=2)


def _numbers() -> Any:
    import tensorflow as tf

    return tf.data.Dataset.range(4)


def summed() -> Any:
    import torchmetrics

    return torchmetrics.SumMetric()


def sgd(**settings: Any) -> Any:
    """Return an optimizer that has its slots."""
    optimizer = _keras().optimizers.SGD(**{"learning_rate": 0.1, "momentum": 0.9, **settings})
    optimizer.build([_variable()])
    return optimizer


def scheduled() -> Any:
    return sgd(learning_rate=_keras().optimizers.schedules.ExponentialDecay(0.1, 10, 0.5))


def scaling() -> Any:
    """Return Keras 2's wrapper that scales the loss."""
    return _keras().mixed_precision.LossScaleOptimizer(_keras().optimizers.SGD(0.1))


def model() -> Any:
    """Return a compiled model."""
    keras = _keras()
    made = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1), keras.layers.Dropout(0.5)])
    made.compile("sgd", "mse")
    return made


def masked() -> Any:
    """Return the output of a layer that masks."""
    import tensorflow as tf

    return _keras().layers.Masking()(tf.zeros((1, 2, 1)))


def called_in_update(name: str) -> bool:
    """Say whether an optimizer calls a method in an update, also where the instance has another in its place."""
    variable = _variable()
    optimizer = _keras().optimizers.SGD(0.1, momentum=0.9, clipnorm=1.0)
    optimizer.build([variable])
    method, calls = getattr(optimizer, name), []

    def noting(*args: Any, **kwargs: Any) -> Any:
        calls.append(name)
        return method(*args, **kwargs)

    object.__setattr__(optimizer, name, noting)
    optimizer.apply_gradients([(_ones(), variable)])
    return bool(calls)


def _variable() -> Any:
    if hasattr(_keras(), "ops"):
        return _keras().Variable([1.0, 1.0])
    import tensorflow as tf

    return tf.Variable([1.0, 1.0])


def _ones() -> Any:
    if hasattr(_keras(), "ops"):
        return _keras().ops.ones(2)
    import tensorflow as tf

    return tf.ones(2)


def _keras() -> Any:
    from hvdkit.keras_common.compat import keras

    return keras()
