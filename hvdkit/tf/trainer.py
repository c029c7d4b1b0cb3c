"""The training loop in TensorFlow: a tape, and an optimizer that reduces."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, ClassVar

import tensorflow as tf

from hvdkit.job.metrics import Sums
from hvdkit.keras_common.compat import scale_loss, unscale
from hvdkit.keras_common.evaluation import measured_over
from hvdkit.keras_common.gradients.denominators import refuse_varying, watching
from hvdkit.keras_common.measures import Measures
from hvdkit.keras_common.models import build_loss
from hvdkit.keras_common.optimizers import set_rate
from hvdkit.keras_common.precision import check_precision, scaling_loss
from hvdkit.keras_common.rates.schedules import check_schedule, follow_schedule
from hvdkit.keras_common.state.files import synchronise_statistics
from hvdkit.keras_common.state.variables import build, model_variables, read
from hvdkit.recipe.trees import map_tree
from hvdkit.training.batches import Batch
from hvdkit.training.checks import check_outputs
from hvdkit.training.loop_trainer import LoopTrainer
from hvdkit.training.loop_weight import LOOP_WEIGHT, weighed_already
from hvdkit.training.trainer import Setup


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
        self._measures = Measures(self._loss, setup.recipe.metrics, setup.world, "tf")
        self._objects = self._measures.objects
        if self.model.built:
            build(self.model, self.optimizer)
        self._train_step = tf.function(self._update_weights, reduce_retracing=True)

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
        return outputs, [loss, *(tf.reduce_mean(mean(y, outputs)) for mean in self._measures.means.values())]

    def _mean_loss(self, y: Any, outputs: Any) -> Any:
        """Return the mean over the batch, and what the layers' regularisers add to it, as Keras's ``fit`` does."""
        with watching() as found:
            loss = tf.reduce_mean(self._loss(y, outputs))
        if self.world.size > 1:
            refuse_varying(found, "a recipe in tf")
        return tf.add_n([loss, *self.model.losses])

    def _metric_names(self) -> list[str]:
        return self._measures.names

    def _start_sums(self, earlier: Sums) -> None:
        self._totals = Sums()
        self._totals.add_totals(earlier.totals())

    def _sums(self) -> Sums:
        return self._totals

    def _due(self) -> Iterator[Batch]:
        """Yield the batches of an epoch; the check builds the model, so observers see a batch after it."""
        for batch in super()._due():
            self._check_outputs(*batch)
            yield batch

    def _check_outputs(self, x: Any, y: Any) -> None:
        if self._unchecked:
            self._unchecked = False
            labels = y if self.batches.targets is None else self.batches.targets
            # layers for sequences draw even so; a run that goes on must draw what one without a break does
            backend, random = self._setup.backend, self._setup.backend.read_random_state(self.model)
            outputs = self.model(map_tree(lambda part: tf.convert_to_tensor(part)[:64], x), training=False)
            backend.write_random_state(self.model, random)
            check_outputs(outputs.numpy(), labels, self.world)

    def _pass(self, batch: Batch) -> None:
        x, y = (map_tree(tf.convert_to_tensor, side) for side in batch)
        self._check_outputs(x, y)
        set_rate(self.optimizer, self.rates.at(self.global_step))
        LOOP_WEIGHT.count_pass()
        with weighed_already():
            outputs, values = self._train_step(x, y, tf.constant(batch.weight * LOOP_WEIGHT.now, tf.float64))
        for name, value in zip(["loss", *self._measures.means], values, strict=True):
            self._totals.add(name, float(value) * batch.count, batch.count)
        self._objects.update(outputs, y, batch.count)

    def _evaluate(self, data: Any) -> dict[str, float]:
        batches = self._evaluation_batches(data)
        synchronise_statistics(self.model)
        world = self.world if self.recipe.average is not None else None
        tell = functools.partial(self._announce, "on_evaluation_batch")
        return measured_over(self.model, batches, self._measures, world, tell)

    def predict(self, inputs: Any) -> Any:
        """Return the model's outputs for images NHWC or other arrays, as NumPy arrays."""
        return map_tree(lambda part: part.numpy(), self.model(map_tree(tf.convert_to_tensor, inputs), training=False))

    def weights(self) -> dict[str, Any]:
        """Return this rank's variables as named NumPy arrays."""
        return read(model_variables(self.model))


def make_trainer(setup: Setup) -> TfTrainer:
    """Make the trainer from what the eight steps have prepared."""
    return TfTrainer(setup)
