"""Small Keras models, and the training of one process that runs on ranks are held against.

``plain`` is written with Keras and what it runs on alone, so that it shares nothing with what it checks but the order
of the samples. Frameworks are imported in functions, since the tests' own process has none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from hvdkit.training.observers import Observer

FEATURES, CLASSES, SEED = 6, 3, 5


def samples(count: int, dtype: str = "float32", seed: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs and labels that a line does not separate."""
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(count, FEATURES))
    y = (np.abs(x[:, 0]) + x[:, 1] > 0.5).astype(np.int64) + (x[:, 2] > 0.8)
    return x.astype(dtype), y


def small_net(dtype: str = "float32", frozen: bool = False, ending: str | None = None, penalty: float = 0.0) -> Any:
    """Return a net of two dense layers, with one more in front that is not trained if ``frozen``."""
    import keras

    layers = keras.layers
    inputs = keras.Input((FEATURES,), dtype=dtype)
    x = layers.Dense(5, dtype=dtype, trainable=False)(inputs) if frozen else inputs
    regulariser = keras.regularizers.L2(penalty) if penalty else None
    x = layers.Dense(8, activation="tanh", dtype=dtype, kernel_regularizer=regulariser)(x)
    return keras.Model(inputs, layers.Dense(CLASSES, dtype=dtype, activation=ending)(x))


def cross_entropy() -> Any:
    import keras

    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def blocks(count: int, global_batch: int, epochs: int, uneven: str = "exact", size: int = 2) -> Iterator[np.ndarray]:
    """Yield the samples of every update, in the order that every number of processes shares."""
    from hvdkit.recipe.plan import ShardPlan

    for epoch in range(epochs):
        order = ShardPlan(count, global_batch, seed=SEED).order(epoch)
        for start in range(0, count, global_batch):
            block = order[start : start + global_batch]
            if len(block) < global_batch and uneven == "drop":
                continue
            yield np.resize(block, -(-len(block) // size) * size) if uneven == "pad" else block


def plain(model: Any, optimizer: Any, data: Any, order: Any, clip: float | None = None, decay: float = 0.0) -> None:
    """Train one process on whole global batches."""
    variables = model.trainable_variables
    for indices in order:
        found = gradients(model, data[0][indices], data[1][indices])
        if clip is not None:
            norm = float(np.sqrt(sum(np.sum(value**2) for value in values(found))))
            found = [gradient * min(1.0, clip / norm) for gradient in found]
        found = [gradient + decay * variable for gradient, variable in zip(found, variables, strict=True)]
        optimizer.apply_gradients(zip(found, variables, strict=True))


def gradients(model: Any, x: Any, y: Any, scale: Any = None) -> list[Any]:
    """Return the gradients of a model's loss by the library that Keras runs on, with ``scale(loss)`` in its place."""

    def loss() -> Any:
        value = cross_entropy()(y, model(x, training=True))
        for penalty in model.losses:
            value = value + penalty
        return scale(value) if scale else value

    by_library = {"torch": _torch_gradients, "jax": _jax_gradients}
    return by_library.get(library(), _tensorflow_gradients)(model.trainable_variables, loss)


def library() -> str:
    """Return what Keras runs on: ``tensorflow``, ``torch`` or ``jax``."""
    import keras

    return str(keras.backend.backend())


def _tensorflow_gradients(variables: list[Any], loss: Any) -> list[Any]:
    import tensorflow as tf

    with tf.GradientTape() as tape:
        value = loss()
    return list(tape.gradient(value, variables))


def _torch_gradients(variables: list[Any], loss: Any) -> list[Any]:
    import torch

    return list(torch.autograd.grad(loss(), [variable.value for variable in variables]))


def _jax_gradients(variables: list[Any], loss: Any) -> list[Any]:
    import jax
    import keras

    def of(arrays: list[Any]) -> Any:
        with keras.StatelessScope(state_mapping=zip(variables, arrays, strict=True)):
            return loss()

    return list(jax.grad(of)([variable.value for variable in variables]))


def stock(optimizer: Any, lr: float) -> Any:
    """Return the Keras optimizer that a neutral one stands for, at another rate."""
    import keras

    import hvdkit

    kinds = keras.optimizers
    if isinstance(optimizer, hvdkit.SGD):
        return kinds.SGD(lr, momentum=optimizer.momentum, nesterov=optimizer.nesterov)
    if isinstance(optimizer, hvdkit.Adagrad):
        return kinds.Adagrad(lr, initial_accumulator_value=0.1, epsilon=1e-8)
    if isinstance(optimizer, hvdkit.AdamW):
        return kinds.AdamW(lr, weight_decay=optimizer.weight_decay, epsilon=1e-8)
    return kinds.Adam(lr, epsilon=1e-8)


def fresh() -> None:
    """Forget the models of other tests, whose names count up, their types and their seeds."""
    import keras

    keras.backend.clear_session()
    keras.backend.set_floatx("float32")
    keras.utils.set_random_seed(0)
    if not hasattr(keras, "ops"):
        # Keras 2 keeps a policy, which then no longer follows floatx
        keras.mixed_precision.set_global_policy(None)


def start(model: Any, arrays: Any) -> Any:
    """Give a model other weights; return it."""
    for variable, value in zip(model.weights, arrays, strict=True):
        variable.assign(value)
    return model


def values(variables: Any) -> list[np.ndarray]:
    """Return variables as arrays."""
    import keras

    if hasattr(keras, "ops"):
        return [np.array(keras.ops.convert_to_numpy(variable)) for variable in variables]
    return [variable.numpy() for variable in variables]


def settle(model: Any) -> None:
    """Give the model what the step just taken has made of it: on JAX, ``fit`` keeps that to itself."""
    if library() == "jax":
        model.jax_state_sync()


def distance(found: Any, expected: Any, before: Any) -> float:
    """Return how far two trained models are apart, in units of what training changed."""

    def norm(first: Any, second: Any) -> float:
        parts = [np.sum((np.float64(a) - np.float64(b)) ** 2) for a, b in zip(first, second, strict=True)]
        return float(np.sqrt(sum(parts)))

    return norm(found, expected) / norm(expected, before)


def state(model: Any, optimizer: Any) -> list[bytes]:
    """Return every weight, slot and learning rate, byte by byte."""
    return as_bytes([*model.weights, *optimizer.variables, optimizer.learning_rate])


def as_bytes(variables: Any) -> list[bytes]:
    """Return variables byte by byte, with every 0 as +0.

    Keras on torch empties its own sums of gradients by multiplying them with 0, whose sign is that of the last value.
    """
    return [(value + value.dtype.type(0)).tobytes() for value in values(variables)]


class Steps(Observer):
    """Notes the state and the learning rate after every update."""

    def __init__(self) -> None:
        self.states: list[Any] = []
        self.rates: list[float] = []

    def on_step_end(self, trainer: Any) -> None:
        settle(trainer.model)
        self.states.append(state(trainer.model, trainer.optimizer))
        self.rates.append(float(values([trainer.optimizer.learning_rate])[0]))
