"""The training loop in TensorFlow: a tape, and an optimizer that reduces."""

from __future__ import annotations

from typing import Any, ClassVar

import tensorflow as tf

from hvdkit.errors import RecipeError
from hvdkit.job.metrics import Sums
from hvdkit.keras_common.compat import scale_loss, unscale
from hvdkit.keras_common.models import build_loss
from hvdkit.keras_common.optimizers import set_rate
from hvdkit.keras_common.precision import check_precision, scaling_loss
from hvdkit.keras_common.rates.schedules import check_schedule, follow_schedule
from hvdkit.keras_common.state.files import synchronise_statistics
from hvdkit.keras_common.state.variables import build, model_variables, read
from hvdkit.recipe.trees import map_tree
from hvdkit.training.batches import Batch
from hvdkit.training.checks import check_accuracy, check_outputs
from hvdkit.training.trainer import LoopTrainer, Setup


class TfTrainer(LoopTrainer):
    """A training run in TensorFlow with a custom loop."""

    framework: ClassVar[str] = "tf"

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        check_precision(self.recipe)
        self.optimizer = scaling_loss(self.optimizer, self.recipe)
        check_schedule(self.optimizer, self.rates, self.accumulate)
        self.rates = follow_schedule(self.optimizer, self.rates, held=self.rates.base)
        source = setup.recipe.pick("loss", "tf")
        self._loss = build_loss(source)
        self._unchecked = source == "sparse_categorical_crossentropy"
        self._metrics = [_metric(entry) for entry in setup.recipe.metrics]
        if self.model.built:
            build(self.model, self.optimizer)
        self._train_step = tf.function(self._update_weights, reduce_retracing=True)
        self._test_step = tf.function(self._measure, reduce_retracing=True)

    def _take_position(self, state: dict[str, Any]) -> None:
        held = self.rates.target
        super()._take_position(state)
        self.rates = follow_schedule(self.optimizer, self.rates, held)

    def _update_weights(self, x: Any, y: Any, weight: Any) -> Any:
        with tf.GradientTape() as tape:
            outputs = self.model(x, training=True)
            loss = self._mean_loss(y, outputs)
            weighted = scale_loss(self.optimizer, loss * tf.cast(weight, loss.dtype))
        variables = self.model.trainable_variables
        gradients = unscale(self.optimizer, tape.gradient(weighted, variables))
        self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return [loss, *(metric(y, outputs) for _, metric in self._metrics)]

    def _measure(self, x: Any, y: Any) -> Any:
        outputs = self.model(x, training=False)
        return [self._mean_loss(y, outputs), *(metric(y, outputs) for _, metric in self._metrics)]

    def _mean_loss(self, y: Any, outputs: Any) -> Any:
        """Return the mean over the batch, and what the layers' regularisers add to it, as Keras's ``fit`` does."""
        return tf.add_n([tf.reduce_mean(self._loss(y, outputs)), *self.model.losses])

    def _metric_names(self) -> list[str]:
        return ["loss", *(name for name, _ in self._metrics)]

    def _train_epoch(self) -> Sums:
        sums = Sums()
        for batch in self.batches:
            self._announce("on_batch", batch)
            self._pass(batch, sums)
            if batch.last:
                self._end_step()
        return sums

    def _pass(self, batch: Batch, sums: Sums) -> None:
        x, y = (map_tree(tf.convert_to_tensor, side) for side in batch)
        if self._unchecked:
            self._unchecked = False
            labels = y if self.batches.targets is None else self.batches.targets
            check_outputs(self.model(map_tree(lambda part: part[:64], x)).numpy(), labels, self.world)
        set_rate(self.optimizer, self.rates.at(self.global_step))
        values = self._train_step(x, y, tf.constant(batch.weight, tf.float64))
        self._add(sums, values, batch.count)

    def _add(self, sums: Sums, values: Any, count: int) -> None:
        for name, value in zip(["loss", *(name for name, _ in self._metrics)], values, strict=True):
            sums.add(name, float(value) * count, count)

    def _train_on(self, batch: Batch) -> dict[str, float]:
        sums = Sums()
        self._pass(batch, sums)
        return sums.means()

    def _evaluate(self, data: Any) -> dict[str, float]:
        synchronise_statistics(self.model)
        sums = Sums()
        for batch in self._evaluation_batches(data):
            self._add(sums, self._test_step(batch.inputs, batch.targets), batch.count)
        return self._over_ranks(sums).means()

    def predict(self, inputs: Any) -> Any:
        """Return the model's outputs for images NHWC or other arrays, as NumPy arrays."""
        return map_tree(lambda part: part.numpy(), self.model(map_tree(tf.convert_to_tensor, inputs), training=False))

    def weights(self) -> dict[str, Any]:
        """Return this rank's variables as named NumPy arrays."""
        return read(model_variables(self.model))


def _metric(entry: Any) -> tuple[str, Any]:
    if entry == "accuracy":
        return "accuracy", _accuracy
    if callable(entry):
        return getattr(entry, "__name__", type(entry).__name__), lambda y, outputs: tf.reduce_mean(entry(y, outputs))
    raise RecipeError(f"metric {entry!r} is unknown in tf; use 'accuracy' or a callable (targets, outputs) -> mean")


def _accuracy(y: Any, outputs: Any) -> Any:
    check_accuracy(outputs.shape, y.shape, class_axis=-1)
    found = tf.argmax(outputs, -1)
    return tf.reduce_mean(tf.cast(tf.equal(found, tf.reshape(tf.cast(y, tf.int64), tf.shape(found))), tf.float32))


def make_trainer(setup: Setup) -> TfTrainer:
    """Make the trainer from what the eight steps have prepared."""
    return TfTrainer(setup)
