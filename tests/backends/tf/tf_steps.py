"""Training steps that TensorFlow compiles from their source, which bodies sent to ranks do not have."""

from __future__ import annotations

from typing import Any


def late_broadcast(model: Any, optimizer: Any, loss_of: Any) -> Any:
    """Return a step as Horovod's users write it, with the broadcast after the first update."""
    import tensorflow as tf

    import hvdkit.tf as hk

    @tf.function
    def step(images, labels, first_batch):
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        tape = hk.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        if first_batch:
            hk.broadcast(model, optimizer)
        return loss

    return step
