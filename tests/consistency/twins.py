"""Runs on one process that must equal those on two bit for bit; imported by ranks only."""

from __future__ import annotations

from typing import Any

import keras_runs as runs
import numpy as np
import tensorflow as tf


def tf_twin(model: Any, optimizer: Any, data: Any, batch: int, epochs: int) -> None:
    """Train on the micro-batches of two ranks, whose gradients are summed in rank order and halved."""
    loss, variables, (x, y) = runs.cross_entropy(), model.trainable_variables, data

    @tf.function(reduce_retracing=True)
    def gradients(images: Any, labels: Any, weight: Any) -> Any:
        with tf.GradientTape() as tape:
            value = loss(labels, model(images, training=True)) * tf.cast(weight, tf.float32)
        return tape.gradient(value, variables)

    for rows in runs.blocks(len(x), 2 * batch, epochs):
        parts = [rows[rank::2] for rank in range(2)]
        # a rank without a sample repeats one that counts nothing
        inputs = [part if len(part) else rows[:1] for part in parts]
        weights = [tf.constant(2 * len(part) / len(rows), tf.float64) for part in parts]
        sums = [gradients(x[part], y[part], weight) for part, weight in zip(inputs, weights, strict=True)]
        mean = [(one + two) / np.float32(2) for one, two in zip(*sums, strict=True)]
        optimizer.apply_gradients(zip(mean, variables, strict=True))
