"""What the tool needs to know about TensorFlow under Keras models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from hvdkit.keras_common.compat import keras
from hvdkit.recipe.declaration import Recipe
from hvdkit.tools.verification.keras_reference import KerasReference
from hvdkit.tools.verification.keras_tf_random import draw_from_state as draw_from_state
from hvdkit.tools.verification.keras_tf_random import generators_of as generators_of
from hvdkit.tools.verification.keras_tf_random import state_of as state_of
from hvdkit.tools.verification.reference import Gradients
from hvdkit.tools.verification.storage import Draws


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


def draws() -> Draws:
    """Return nothing: where TensorFlow's own generators stand cannot be read."""
    return {}


def set_draws(draws: Draws) -> None:
    """Do nothing."""
    del draws


def observe_steps(model: Any, seeds: list[Any], note: Callable[..., None], which: str) -> None:
    """Call ``note(x, y, weights, values of seeds)`` before each ``train`` or ``test`` step that ``fit`` takes."""
    step = getattr(model, f"{which}_step")

    def observed(data: Any) -> Any:
        x, y, weights = keras().utils.unpack_x_y_sample_weight(data)
        given = [x, y, [] if weights is None else [weights], [tf.convert_to_tensor(variable) for variable in seeds]]

        def unpacked(*leaves: Any) -> None:
            x, y, weights, values = tf.nest.pack_sequence_as(given, leaves)
            note(x, y, weights[0] if weights else None, values)

        noted = tf.numpy_function(unpacked, tf.nest.flatten(given), [])
        with tf.control_dependencies([noted]):
            return step(data)

    object.__setattr__(model, f"{which}_step", observed)


class Rows:
    """A sparse gradient that can be added and scaled; a row that occurs twice counts twice."""

    def __init__(self, slices: Any) -> None:
        self.slices = slices

    def __mul__(self, factor: float) -> Rows:
        return Rows(tf.IndexedSlices(self.slices.values * factor, self.slices.indices, self.slices.dense_shape))

    def __add__(self, other: Any) -> Any:
        if not isinstance(other, Rows):
            return tf.convert_to_tensor(self.slices) + other
        parts = (self.slices, other.slices)
        values, indices = (tf.concat([getattr(part, name) for part in parts], 0) for name in ("values", "indices"))
        return Rows(tf.IndexedSlices(values, indices, self.slices.dense_shape))

    def __radd__(self, other: Any) -> Any:
        return self + other


class TfReference(KerasReference):
    """The reference on TensorFlow: a tape in compiled functions."""

    def __init__(self, view: Any, recipe: Recipe) -> None:
        super().__init__(view, recipe)
        self._used: list[bool] = []
        # optimizers of Keras add passes up in dense variables
        self._dense = recipe.distribute is not None and recipe.distribute.accumulate > 1
        self._compute = tf.function(self._gradients, reduce_retracing=True)
        self._measure = tf.function(self._loss_and_outputs, reduce_retracing=True)
        self._step = tf.function(self._apply, reduce_retracing=True)

    def _train(self, x: Any, y: Any, weights: Any, weight: float) -> tuple[Gradients, Any, Any]:
        gradients, loss, outputs = self._compute(x, y, weights, tf.constant(weight, tf.float64))
        present = iter(gradients)
        found = [next(present) if used else None for used in self._used]
        return [Rows(entry) if isinstance(entry, tf.IndexedSlices) else entry for entry in found], loss, outputs

    def _gradients(self, x: Any, y: Any, weights: Any, weight: Any) -> Any:
        with tf.GradientTape() as tape:
            loss, outputs = self._loss_and_outputs(x, y, weights, training=True)
            weighted = loss * tf.cast(weight, loss.dtype)
        gradients = tape.gradient(weighted, self.model.trainable_variables)
        self._used = [gradient is not None for gradient in gradients]
        present = [gradient for gradient in gradients if gradient is not None]
        return [tf.convert_to_tensor(entry) if self._dense else entry for entry in present], loss, outputs

    def _loss_and_outputs(self, x: Any, y: Any, weights: Any, training: bool) -> Any:
        outputs = self.model(x, training=training)
        return self._measures.loss(x, y, weights, outputs), outputs

    def _test(self, x: Any, y: Any, weights: Any) -> tuple[Any, Any]:
        loss, outputs = self._measure(x, y, weights, training=False)
        return loss, outputs

    def _update(self, gradients: Gradients, variables: list[Any]) -> None:
        self._variables = variables
        self._step([gradient.slices if isinstance(gradient, Rows) else gradient for gradient in gradients])

    def _apply(self, gradients: Any) -> None:
        if self._clip_norm is not None:
            whole = [tf.convert_to_tensor(gradient) for gradient in gradients]
            factor = tf.minimum(1.0, self._clip_norm / tf.linalg.global_norm(whole))
            gradients = [gradient * tf.cast(factor, gradient.dtype) for gradient in whole]
        self.optimizer.apply_gradients(zip(gradients, self._variables, strict=True))


def make_reference(view: Any, recipe: Recipe) -> TfReference:
    """Make the reference."""
    return TfReference(view, recipe)
