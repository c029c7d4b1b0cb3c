"""What gradients count for in a loop of one's own, also where a ``tf.function`` computes them."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hvdkit.keras_common.gradients.tf_gradients import untrained_variable, weigh
from hvdkit.training.loop_weight import LOOP_WEIGHT, is_weighed_already


class _Variables:
    """The weight of the current batch and the number of backward passes, where graphs find them."""

    def __init__(self) -> None:
        self._weight = untrained_variable(1.0, tf.float64)
        self._passes = untrained_variable(0, tf.int64)

    def passes(self) -> int:
        """Return how often gradients were weighed."""
        with tf.init_scope():
            return int(self._passes.numpy())

    def weigh(self, weight: float) -> None:
        with tf.init_scope():
            self._weight.assign(weight)

    def next_weight(self) -> Any:
        """Count a pass; return what its gradients count for."""
        with tf.control_dependencies([self._passes.assign_add(1)]):
            return tf.identity(self._weight)


_made: list[_Variables] = []


def weighed(gradients: list[Any]) -> list[Any]:
    """Return gradients times what the current batch of a loop over ``shard``'s batches counts for; None stays None.

    Raises:
        RecipeError: The batches are read ahead of the passes.
    """
    if is_weighed_already():
        return gradients
    LOOP_WEIGHT.check_pass()
    if not _made:
        _made.append(_Variables())
        LOOP_WEIGHT.follow(_made[0])
        LOOP_WEIGHT.count_by(_made[0].passes)
    weight = _made[0].next_weight()
    return [None if gradient is None else _times(gradient, weight) for gradient in gradients]


def _times(gradient: Any, weight: Any) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(weigh(gradient.values, weight), gradient.indices, gradient.dense_shape)
    return weigh(tf.convert_to_tensor(gradient), weight)
