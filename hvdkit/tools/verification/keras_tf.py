"""What the tool needs to know about TensorFlow under Keras models."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from hvdkit.recipe.declaration import Recipe
from hvdkit.tools.verification.keras_reference import KerasReference
from hvdkit.tools.verification.reference import Gradients


def threads() -> int:
    """Return the threads that were set, 0 for as many as TensorFlow likes."""
    return int(tf.config.threading.get_intra_op_parallelism_threads())


def set_threads(number: int) -> None:
    """Compute with as many threads as the ranks."""
    if number:
        tf.config.threading.set_intra_op_parallelism_threads(number)
        tf.config.threading.set_inter_op_parallelism_threads(max(2, number))


def prepare(dtype: str) -> None:
    """Allow this dtype; TensorFlow has them all."""
    del dtype


def device() -> str:
    """Return the device that this process sees."""
    visible = tf.config.get_visible_devices("GPU")
    return f"gpu:{visible[0].name.rpartition(':')[2]}" if visible else "cpu"


def fetch(model: Any) -> None:
    """Bring variables up to date during ``fit``; here they always are."""
    del model


def record_batches(trainer: Any, recorder: Any) -> None:
    """Note what the model's training step is given; a sample of weight 0 stands for none."""
    step = trainer.model.train_step
    recorder.sees_batches = False

    def note(x: Any, y: Any, weights: Any) -> None:
        count = len(x) if np.any(weights) else 0
        recorder.note_batch(x, y, {}, count, None, trainer.global_step + 1, trainer.epoch)

    def recorded(data: Any) -> Any:
        x, y, *weights = data
        tf.numpy_function(note, [x, y, weights[0] if weights else tf.ones([])], [])
        return step(data)

    object.__setattr__(trainer.model, "train_step", recorded)


class TfReference(KerasReference):
    """The reference on TensorFlow: a tape in compiled functions."""

    def __init__(self, view: Any, recipe: Recipe) -> None:
        super().__init__(view, recipe)
        self._used: list[bool] = []
        self._compute = tf.function(self._gradients, reduce_retracing=True)
        self._measure = tf.function(lambda x, y: self._values(x, y, training=False), reduce_retracing=True)
        self._step = tf.function(self._apply, reduce_retracing=True)

    def _train(self, x: Any, y: Any, weight: float) -> tuple[Gradients, dict[str, Any]]:
        gradients, values = self._compute(x, y, tf.constant(weight, tf.float64))
        present = iter(gradients)
        return [next(present) if used else None for used in self._used], values

    def _gradients(self, x: Any, y: Any, weight: Any) -> Any:
        with tf.GradientTape() as tape:
            values = self._values(x, y, training=True)
            weighted = values["loss"] * tf.cast(weight, values["loss"].dtype)
        gradients = tape.gradient(weighted, self.model.trainable_variables)
        self._used = [gradient is not None for gradient in gradients]
        return [tf.convert_to_tensor(gradient) for gradient in gradients if gradient is not None], values

    def _test(self, x: Any, y: Any) -> dict[str, Any]:
        values: dict[str, Any] = self._measure(x, y)
        return values

    def _values(self, x: Any, y: Any, training: bool) -> dict[str, Any]:
        outputs = self.model(x, training=training)
        loss = tf.add_n([tf.reduce_mean(self._loss(y, outputs)), *self.model.losses])
        values = {"loss": loss}
        for entry in self.recipe.metrics:
            if isinstance(entry, str):
                if len(outputs.shape) != len(y.shape) + 1 or outputs.shape[-1] == 1:
                    continue
                right = tf.equal(tf.argmax(outputs, 1), tf.cast(y, tf.int64))
                values["accuracy"] = tf.reduce_mean(tf.cast(right, tf.float64))
            elif self._view.framework == "tf" and not hasattr(entry, "update_state"):
                values[getattr(entry, "__name__", type(entry).__name__)] = tf.reduce_mean(entry(y, outputs))
        return values

    def _update(self, gradients: Gradients, variables: list[Any]) -> None:
        self._variables = variables
        self._step(gradients)

    def _apply(self, gradients: Any) -> None:
        if self._clip_norm is not None:
            factor = tf.minimum(1.0, self._clip_norm / tf.linalg.global_norm(gradients))
            gradients = [gradient * tf.cast(factor, gradient.dtype) for gradient in gradients]
        self.optimizer.apply_gradients(zip(gradients, self._variables, strict=True))


def make_reference(view: Any, recipe: Recipe) -> TfReference:
    """Make the reference."""
    return TfReference(view, recipe)
