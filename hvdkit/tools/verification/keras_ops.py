"""What Keras on torch and on JAX have in common for the tool: recorded batches, and a reference by ``keras.ops``."""

from __future__ import annotations

from typing import Any

import numpy as np
from keras import ops

from hvdkit.tools.verification.keras_reference import KerasReference
from hvdkit.tools.verification.reference import Gradients


def record_batches(trainer: Any, recorder: Any) -> None:
    """Note the batches that ``fit`` takes; a sample of weight 0 stands for none.

    ``fit`` may take batches ahead, and looks at the first one twice: a batch's position says to which update it
    belongs.
    """
    batches, done = trainer.batches, set()
    kind = type(batches)

    class Recorded(kind):  # type: ignore[misc, valid-type]
        def __getitem__(self, index: int) -> Any:
            batch = super().__getitem__(index)
            position = (self._epoch, index)
            if position not in done:
                done.add(position)
                x, y, *weights = batch
                count = len(x) if not weights or np.any(weights[0]) else 0
                update = self._epoch * trainer.steps_per_epoch + index // trainer.accumulate + 1
                recorder.note_batch(trainer, x, y, {}, count, None, (update, self._epoch))
            return batch

    batches.__class__ = Recorded


class OpsReference(KerasReference):
    """The reference by ``keras.ops``."""

    def _values(self, outputs: Any, y: Any, losses: Any) -> dict[str, Any]:
        values = {"loss": sum(losses, start=ops.mean(self._loss(y, outputs)))}
        if "accuracy" in self.recipe.metrics:
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
