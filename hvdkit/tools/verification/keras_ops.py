"""What Keras on torch and on JAX have in common for the tool: a reference by ``keras.ops``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keras import ops

from hvdkit.keras_common.compat import as_tensor
from hvdkit.recipe.trees import map_tree
from hvdkit.tools.verification.keras_reference import KerasReference
from hvdkit.tools.verification.reference import Gradients


def draw_from_state(model: Any) -> None:
    """Do nothing: what these libraries draw from can be set, or is the model's."""
    del model


def state_of(model: Any) -> list[Any]:
    """Return no variable beside those that Keras has."""
    del model
    return []


def generators_of(model: Any) -> list[Any]:
    """Return the variables of no generator: layers keep none of the library's."""
    del model
    return []


class OpsReference(KerasReference):
    """The reference by ``keras.ops``."""

    def _loss_of(self, batch: Sequence[Any], training: bool) -> tuple[Any, Any]:
        """Return loss and outputs."""
        x, y, weights = batch
        outputs = self.model(x, training=training)
        return self._measures.loss(x, y, weights, outputs), outputs

    def _test(self, x: Any, y: Any, weights: Any) -> tuple[Any, Any]:
        return self._loss_of(tensors(x, y, weights), training=False)

    def _update(self, gradients: Gradients, variables: list[Any]) -> None:
        if self._clip_norm is not None:
            norm = ops.sqrt(sum(ops.sum(ops.square(gradient)) for gradient in gradients))
            factor = ops.minimum(1.0, self._clip_norm / norm)
            gradients = [gradient * factor for gradient in gradients]
        self.optimizer.apply(gradients, variables)


def tensors(*trees: Any) -> tuple[Any, ...]:
    """Return trees of tensors; None stays None."""
    return tuple(None if tree is None else map_tree(as_tensor, tree) for tree in trees)
