"""The reference for Keras models on TensorFlow: a tape, and the optimizer as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from hvdkit.keras_objects.models import build_loss
from hvdkit.keras_objects.versions import keras
from hvdkit.recipe import Recipe
from hvdkit.verification.reference import Gradients, Reference
from hvdkit.verification.storage import Arrays

if TYPE_CHECKING:
    from hvdkit.verification.keras_side import KerasSide


class KerasReference(Reference):
    """The reference in Keras."""

    def __init__(self, side: KerasSide, recipe: Recipe) -> None:
        self._side = side
        # layers are named as in the ranks, whose model is the first of their process
        keras().backend.clear_session()
        model = side.build(recipe)
        super().__init__(recipe, model, *side.backend.build_optimizer(recipe.pick("optimizer", side.framework), model))
        self._loss = build_loss(recipe.pick("loss", side.framework))
        self._compute = tf.function(self._pass, reduce_retracing=True)
        self._measure = tf.function(self._test, reduce_retracing=True)
        self._step = tf.function(self._apply, reduce_retracing=True)
        if model.built:
            self.optimizer.build(model.trainable_variables)

    def prime(self, x: Any) -> None:
        """Build what is built by its first batch."""
        if not self.model.built:
            self.model(x)
            self.optimizer.build(self.model.trainable_variables)

    def gradients(self, arrays: Arrays, weight: float, count: int) -> Gradients:
        """Return the gradients of ``weight`` times the mean loss, and note loss and metrics."""
        gradients, values = self._compute(arrays["x"], arrays["y"], tf.constant(weight, tf.float64))
        self._note(values, count)
        present = iter(gradients)
        return [next(present) if used else None for used in self._used]

    def _pass(self, x: Any, y: Any, weight: Any) -> Any:
        with tf.GradientTape() as tape:
            values, loss = self._values(x, y, training=True)
            weighted = loss * tf.cast(weight, loss.dtype)
        gradients = tape.gradient(weighted, self.model.trainable_variables)
        self._used = [gradient is not None for gradient in gradients]
        return [tf.convert_to_tensor(gradient) for gradient in gradients if gradient is not None], values

    def _test(self, x: Any, y: Any) -> Any:
        return self._values(x, y, training=False)[0]

    def _values(self, x: Any, y: Any, training: bool) -> Any:
        outputs = self.model(x, training=training)
        loss = tf.add_n([tf.reduce_mean(self._loss(y, outputs)), *self.model.losses])
        values = {"loss": loss}
        for entry in self.recipe.metrics:
            if entry == "accuracy":
                right = tf.equal(tf.argmax(outputs, 1), tf.cast(y, tf.int64))
                values["accuracy"] = tf.reduce_mean(tf.cast(right, tf.float64))
            elif self._side.framework == "tf":
                values[getattr(entry, "__name__", type(entry).__name__)] = tf.reduce_mean(entry(y, outputs))
        return values, loss

    def _note(self, values: Any, count: int) -> None:
        for name, value in values.items():
            self.note(name, float(value), count)

    def apply(self, gradients: Gradients, rate: float) -> None:
        """Clip the gradients and update the weights."""
        self._set_rate(rate)
        self._step([gradient for gradient in gradients if gradient is not None])

    def _apply(self, gradients: Any) -> None:
        variables = [
            variable for variable, used in zip(self.model.trainable_variables, self._used, strict=True) if used
        ]
        limit = self.recipe.distribute.clip_norm if self.recipe.distribute else None
        if limit is not None:
            factor = tf.minimum(1.0, limit / tf.linalg.global_norm(gradients))
            gradients = [gradient * tf.cast(factor, gradient.dtype) for gradient in gradients]
        self.optimizer.apply_gradients(zip(gradients, variables, strict=True))

    def _set_rate(self, rate: float) -> None:
        """Set the rate; Keras's momentum has the old one folded in (Goyal et al., 2017, remark 2)."""
        old = self._side.rate(self.optimizer)
        self.optimizer.learning_rate = rate
        new = self._side.rate(self.optimizer)
        if type(self.optimizer).__name__ == "SGD" and old and new != old:
            for velocity in getattr(self.optimizer, "momentums", None) or ():
                velocity.assign(velocity * (new / old))

    def evaluate(self, x: Any, y: Any) -> None:
        """Note loss and metrics of neutral arrays, without training."""
        for start in range(0, len(x), self.recipe.batch_size):
            part = slice(start, start + self.recipe.batch_size)
            self._note(self._measure(np.asarray(x[part]), np.asarray(y[part])), len(x[part]))

    def statistics(self) -> Arrays:
        """Return what is not trained."""
        return self._side.statistics(self.model)

    def write(self, arrays: Arrays) -> None:
        """Assign variables by name."""
        variables = self._side.variables(self.model)
        for name, value in arrays.items():
            variables[name].assign(value)
