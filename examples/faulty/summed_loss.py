"""Wrong: the loss is the sum over a batch. The mean over processes of their sums is not the sum of the global batch.

hvdkit verify examples/faulty/summed_loss.py --framework torch

Right: the mean over the batch, and a learning rate that is larger by the batch size. A loss object that says
``reduction="sum"`` is refused before training; this function hides it.
"""

from __future__ import annotations

from typing import Any

from small_net import small_recipe


def torch_loss(outputs: Any, targets: Any) -> Any:
    """Return a sum."""
    import torch

    return torch.nn.functional.cross_entropy(outputs, targets, reduction="sum")


def keras_loss(targets: Any, outputs: Any) -> Any:
    """Return a sum."""
    import keras
    import tensorflow as tf

    return tf.reduce_sum(keras.losses.sparse_categorical_crossentropy(targets, outputs, from_logits=True))


recipe = small_recipe.replace(loss={"torch": torch_loss, "tf": keras_loss, "keras": keras_loss})
