"""Training as people write it who do not know hvdkit, in the order of its samples; imported by ranks only."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf


def orders(count: int, epochs: int, seed: int) -> list[Any]:
    """Return the order of the samples in every epoch."""
    return [
        np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, epoch]))).permutation(count)
        for epoch in range(epochs)
    ]


def tf_loop(model: Any, optimizer: Any, data: Any, batch: int, epochs: int, seed: int) -> list[float]:
    """Train in a loop with a tape; return the mean loss of every epoch."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function(reduce_retracing=True)
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            value = loss(y, model(x, training=True))
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(value, variables), variables, strict=True))
        return value

    means = []
    for order in orders(len(data[0]), epochs, seed):
        total = 0.0
        for start in range(0, len(order), batch):
            rows = order[start : start + batch]
            total += float(step(data[0][rows], data[1][rows])) * len(rows)
        means.append(total / len(order))
    return means


def fit(model: Any, optimizer: Any, data: Any, batch: int, epochs: int, seed: int) -> list[float]:
    """Train by ``fit``; return the mean loss of every epoch."""
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    losses = []
    for epoch, order in enumerate(orders(len(data[0]), epochs, seed)):
        rows = tf.data.Dataset.from_tensor_slices((data[0][order], data[1][order])).batch(batch)
        history = model.fit(rows, initial_epoch=epoch, epochs=epoch + 1, shuffle=False, verbose=0).history
        losses += history["loss"]
    return losses
