"""What Keras on torch and on JAX have in common for the tool: a reference by ``keras.ops``."""

from __future__ import annotations

from typing import Any

from keras import ops

from hvdkit.tools.verification.keras_reference import KerasReference
from hvdkit.tools.verification.reference import Gradients


class OpsReference(KerasReference):
    """The reference by ``keras.ops``."""

    def _values(self, outputs: Any, y: Any, losses: Any) -> dict[str, Any]:
        values = {"loss": sum(losses, start=ops.mean(self._loss(y, outputs)))}
        if "accuracy" in self.recipe.metrics and len(outputs.shape) == len(y.shape) + 1 and outputs.shape[-1] > 1:
            right = ops.equal(ops.argmax(outputs, 1), ops.cast(y, "int64"))
            values["accuracy"] = ops.mean(ops.cast(right, "float32"))
        return values

    def _test(self, x: Any, y: Any) -> dict[str, Any]:
        return self._values(self.model(x, training=False), y, self.model.losses)

    def _update(self, gradients: Gradients, variables: list[Any]) -> None:
        if self._clip_norm is not None:
            norm = ops.sqrt(sum(ops.sum(ops.square(gradient)) for gradient in gradients))
            factor = ops.minimum(1.0, self._clip_norm / norm)
            gradients = [gradient * factor for gradient in gradients]
        self.optimizer.apply(gradients, variables)
