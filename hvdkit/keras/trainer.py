"""A training run by Keras's own ``fit``, watched by one callback."""

from __future__ import annotations

import time
from typing import Any, ClassVar

import numpy as np

from hvdkit.errors import DataError
from hvdkit.keras.callbacks import MetricAverageCallback
from hvdkit.keras.evaluation import evaluate_compiled
from hvdkit.keras.fit_batches import FitBatches
from hvdkit.keras.fit_checks import unwatched_fit
from hvdkit.keras.fit_guard import GuardedCallback
from hvdkit.keras.own_batches import check_own_step
from hvdkit.keras_common.compat import as_tensor, keras, library, schedule_of, to_numpy
from hvdkit.keras_common.gradients.sample_counts import show_unweighted
from hvdkit.keras_common.measures import accuracy_metric, compiled_names, loss_kind
from hvdkit.keras_common.models import build_loss
from hvdkit.keras_common.optimizers import set_rate
from hvdkit.keras_common.precision import check_precision
from hvdkit.keras_common.rates.schedules import check_schedule, follow_schedule
from hvdkit.keras_common.state.variables import build, model_variables, read
from hvdkit.recipe.trees import is_branch, map_tree
from hvdkit.training.batch import NO_TARGETS
from hvdkit.training.batches import Batch
from hvdkit.training.checks import SPARSE, accuracy_form, check_outputs
from hvdkit.training.metric_objects import agree_on_metrics
from hvdkit.training.trainer import Setup, Trainer


class KerasTrainer(Trainer):
    """A training run in Keras."""

    framework: ClassVar[str] = "keras"
    batches: FitBatches

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.batches.observe = lambda batch: self._announce("on_batch", batch)
        check_precision(self.recipe)
        check_schedule(self.optimizer, self.rates, self.accumulate)
        self.rates = follow_schedule(self.optimizer, self.rates, held=self.rates.base)
        source = setup.recipe.pick("loss", "keras")
        loss = build_loss(source)
        agree_on_metrics(setup.world, *compiled_names(setup.recipe.metrics))
        accuracy = self._check_first_batch(source == "sparse_categorical_crossentropy", loss_kind(loss))
        metrics = [accuracy if entry == "accuracy" else entry for entry in setup.recipe.metrics]
        weighted = self.batches.weighted
        self.model.compile(
            optimizer=self.optimizer,
            loss=loss,
            metrics=None if weighted else metrics or None,
            weighted_metrics=(metrics or None) if weighted else None,
            # the reduction is a host call, which XLA on TensorFlow cannot compile
            **({"jit_compile": False} if library() == "tf" else {}),
        )
        self.optimizer = self.model.optimizer  # wrapped by compile under mixed_float16
        if weighted and self.accumulate > 1:
            show_unweighted(self.model)
        build(self.model, self.optimizer)
        if library() == "jax":
            self._drive_rate(setup.recipe.epochs)

    def _drive_rate(self, epochs: int) -> None:
        """Hand over the rates of the run: during ``fit``, Keras on JAX keeps the optimizer's variables out of reach."""
        if schedule_of(self.optimizer) is not None:
            return
        set_rate(self.optimizer, self.rates.target)
        if self.rates.warmup_steps or self.rates.schedule is not None:
            from hvdkit.keras_common.rates.driven_rates import driven_rate

            driven = driven_rate(self.optimizer)
            driven.drive(0, [self.rates.at(step) for step in range(epochs * self.steps_per_epoch)])
            self.model.make_train_function(force=True)

    def _take_position(self, state: dict[str, Any]) -> None:
        held = self.rates.target
        super()._take_position(state)
        self.rates = follow_schedule(self.optimizer, self.rates, held)
        if library() == "jax":
            self._drive_rate(self.recipe.epochs)

    def _check_first_batch(self, takes_logits: bool, kind: str | None) -> Any:
        """Build the model and look at its outputs, without an update; return what ``accuracy`` is here."""
        inputs, targets = self.batches.first()
        if targets is NO_TARGETS:
            check_own_step(self.model, inputs)
            return None
        outputs = self.model(map_tree(lambda part: part[:64], inputs))
        if takes_logits and not is_branch(outputs):
            labels = targets if self.batches.targets is None else self.batches.targets
            check_outputs(to_numpy(outputs), labels, self.world)
        if "accuracy" not in self.recipe.metrics or is_branch(outputs):
            return accuracy_metric(SPARSE, kind)
        shapes = (None, *outputs.shape[1:]), (None, *targets.shape[1:])
        return accuracy_metric(accuracy_form(*shapes, class_axis=-1, loss=kind), kind)

    def _run_epochs(self, last: int) -> None:
        if library() == "jax" and last > self.recipe.epochs:
            self._drive_rate(last)
        validation = self._setup.validation
        unwatched_fit(self.model)(  # a recipe is checked already
            self.batches,
            epochs=last,
            initial_epoch=self.epoch,
            steps_per_epoch=self._endless_steps(),
            validation_data=None if validation is None else self._validation(validation),
            callbacks=[GuardedCallback(), *self._averaging(), _Watcher(self)],
            shuffle=False,
            verbose=0,
        )

    def _validation(self, data: Any) -> Any:
        batches = self._evaluation_batches(data)
        if batches.samples is not None and batches.samples < self.world.size:
            raise DataError(
                f"there are fewer validation samples than the {self.world.size} processes; give at least one each"
            )
        return batches

    def _averaging(self) -> list[Any]:
        return [] if self.recipe.average is None else [MetricAverageCallback()]

    def _endless_steps(self) -> int | None:
        if self.batches.samples is not None:
            return None
        return self.steps_per_epoch * self.accumulate

    def samples_per_epoch(self) -> int:
        """Return the training samples of an epoch over all ranks."""
        samples = self.batches.samples
        return self.steps_per_epoch * self.global_batch if samples is None else samples

    def _train_on(self, batch: Batch) -> dict[str, float]:
        self.set_rate()
        self.model.reset_metrics()
        # as fit's are: on torch, Keras gives metrics the targets as they come
        inputs, targets = (map_tree(as_tensor, side) for side in batch)
        logs = self.model.train_on_batch(inputs, targets, return_dict=True)
        return {name: float(value) for name, value in logs.items()}

    def set_rate(self) -> None:
        """Set the learning rate of the next update."""
        if library() == "jax":
            return
        set_rate(self.optimizer, self.rates.at(self.global_step))

    def finish_step(self) -> None:
        """Note that an update is done."""
        self._end_step()

    def begin_epoch(self) -> float:
        """Tell the observers that an epoch begins; return the time."""
        return self._begin_epoch()

    def end_epoch(self, logs: dict[str, float], spent: float) -> bool:
        """Tell the observers that an epoch is done; return whether training stops here."""
        training = {name: float(value) for name, value in logs.items() if not name.startswith("val_")}
        training.pop("learning_rate", None)
        validation = {name[4:]: float(value) for name, value in logs.items() if name.startswith("val_")}
        self._end_epoch(training, validation, self.samples_per_epoch(), spent)
        return self._stop

    def _evaluate(self, data: Any) -> dict[str, float]:
        batches = self._evaluation_batches(data)
        return evaluate_compiled(self.model, batches, self.world if self.recipe.average is not None else None)

    def predict(self, inputs: Any) -> Any:
        """Return the model's outputs for images NHWC or other arrays, as NumPy arrays."""
        return self.model.predict(map_tree(np.asarray, inputs), verbose=0)

    def weights(self) -> dict[str, Any]:
        """Return this rank's variables as named NumPy arrays."""
        return read(model_variables(self.model))


_Callback: Any = keras().callbacks.Callback


class _Watcher(_Callback):
    """Forwards what ``fit`` does to the trainer and its observers."""

    def __init__(self, trainer: KerasTrainer) -> None:
        super().__init__()
        self._trainer = trainer
        self._began = 0.0
        self._trained = 0.0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._began = self._trainer.begin_epoch()
        self._trained = 0.0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._trainer.set_rate()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if (batch + 1) % self._trainer.accumulate == 0:
            self._trainer.finish_step()

    def on_test_begin(self, logs: Any = None) -> None:
        self._trained = time.perf_counter() - self._began

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        spent = self._trained or time.perf_counter() - self._began
        if self._trainer.end_epoch(dict(logs or {}), spent):
            self.model.stop_training = True


def make_trainer(setup: Setup) -> KerasTrainer:
    """Make the trainer from what the eight steps have prepared."""
    return KerasTrainer(setup)
