"""Faults that no weight shows: in losses, metrics, modes, random streams and statistics."""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Iterator
from typing import Any

from mutant_recipes import CLASSES, FEATURES, backends, data, mutant, nets, torch_net

import hvdkit
from hvdkit.job import metrics
from hvdkit.training import trainer as training


def _masked(outputs: Any, targets: Any) -> Any:
    """Return the mean over labels other than 0."""
    from torch.nn import functional

    return functional.cross_entropy(outputs, targets, ignore_index=0)


def _masked_tf(targets: Any, outputs: Any) -> Any:
    import tensorflow as tf

    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.cast(targets, tf.int32), outputs)
    counts = tf.cast(tf.not_equal(tf.cast(targets, tf.int32), 0), losses.dtype)
    return tf.math.divide_no_nan(tf.reduce_sum(losses * counts), tf.reduce_sum(counts))


def _summed(outputs: Any, targets: Any) -> Any:
    from torch.nn import functional

    return functional.cross_entropy(outputs, targets, reduction="sum")


def _summed_tf(targets: Any, outputs: Any) -> Any:
    import tensorflow as tf

    return tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(tf.cast(targets, tf.int32), outputs))


@mutant("recipe", ("torch", "tf"), loss={"torch": _masked, "tf": _masked_tf})
def mean_over_a_mask() -> None:
    """The loss divides by the labels that count, of which ranks have different numbers."""


@mutant("recipe", ("torch", "tf"), loss={"torch": _summed, "tf": _summed_tf}, model=nets(True))
def summed_loss_with_batchnorm() -> None:
    """A sum over the batch, where the whole batch cannot be compared."""


def dropping_torch_net() -> Any:
    import torch

    return torch.nn.Sequential(torch_net(), torch.nn.Dropout(0.3), torch.nn.Linear(CLASSES, CLASSES))


def dropping_keras_net() -> Any:
    from hvdkit.keras_common.compat import keras

    layers = keras().layers
    inputs = keras().Input((FEATURES,))
    return keras().Model(inputs, layers.Dense(CLASSES)(layers.Dropout(0.3)(layers.Dense(8)(inputs))))


DROPPING = {"torch": dropping_torch_net, "tf": dropping_keras_net, "keras": dropping_keras_net}


@mutant("recipe", ("torch", "tf"), loss={"torch": _summed, "tf": _summed_tf}, model=DROPPING)
def summed_loss_with_dropout() -> None:
    """A sum over the batch, where random numbers are drawn."""


@mutant("average", ("torch", "tf"), model=nets(False, dropout=True))
def validation_in_training_mode() -> None:
    """Validation leaves out what training leaves out."""
    if backends()[0].__name__ == "hvdkit.torch":
        importlib.import_module("hvdkit.torch.trainer").evaluating = _as_it_is
        return
    evaluation = importlib.import_module("hvdkit.keras_common.evaluation")
    evaluation._forward = lambda model: lambda inputs: (model(inputs, training=True), 0.0)


@contextlib.contextmanager
def _as_it_is(model: Any) -> Iterator[None]:
    yield


@mutant("average", ("torch", "tf"), model=nets(True))
def left_in_evaluation_mode() -> None:
    """From the second epoch on nothing trains in training mode."""
    if backends()[0].__name__ == "hvdkit.torch":
        from hvdkit.torch.trainer import TorchTrainer

        train = TorchTrainer._train_epoch

        def evaluating(self: Any) -> None:
            self.model.train = lambda mode=True: self.model
            train(self)

        def first(self: Any) -> None:
            train(self)
            self.model.eval()
            TorchTrainer._train_epoch = evaluating  # type: ignore[method-assign]

        TorchTrainer._train_epoch = first  # type: ignore[method-assign]
        return
    from hvdkit.tf.trainer import TfTrainer

    epoch, update = TfTrainer._train_epoch, TfTrainer._update_weights

    def begun(self: Any) -> None:
        if self.epoch:
            import tensorflow as tf

            call = self.model.call
            object.__setattr__(
                self.model, "call", lambda inputs, training=None, **more: call(inputs, training=False, **more)
            )
            self._train_step = tf.function(functools.partial(update, self), reduce_retracing=True)
        epoch(self)

    TfTrainer._train_epoch = begun  # type: ignore[method-assign]


@mutant("broadcast", ("torch", "tf"), model=DROPPING)
def one_dropout_stream_from_the_second_epoch() -> None:
    """Every rank is seeded alike at the start of an epoch."""
    begin = training.Trainer._begin_epoch

    def seeded(self: Any) -> float:
        if self.epoch:
            if self.framework == "torch":
                import torch

                torch.manual_seed(self.epoch)
            else:
                from hvdkit.keras_common.compat import seed_variables, to_numpy

                for variable in seed_variables(self.model):
                    variable.assign(to_numpy(variable) * 0 + self.epoch)
        return begin(self)

    training.Trainer._begin_epoch = seeded  # type: ignore[method-assign]


def without_validation() -> hvdkit.Data:
    return hvdkit.Data(data().train)


@mutant("average", model=nets(True), data=without_validation)
def statistics_joined_by_the_maximum() -> None:
    """Running statistics are the largest of the ranks', and no validation shows it."""
    backends()
    side = "torch.synchronising" if backends()[0].__name__ == "hvdkit.torch" else "keras_common.state.files"
    module = importlib.import_module(f"hvdkit.{side}")

    def largest(world: Any, arrays: Any) -> Any:
        held = world.engine.allgather_object(arrays)
        return {name: functools.reduce(_maximum, [entry[name] for entry in held]) for name in arrays}

    module.average_arrays = largest


def _maximum(left: Any, right: Any) -> Any:
    import numpy as np

    return np.maximum(left, right)


@mutant("average")
def validation_metric_a_little_off() -> None:
    """The accuracy of validation is 3 % too high."""
    end = training.Trainer._end_epoch

    def changed(self: Any, found: Any, validation: Any, samples: float, spent: float) -> None:
        validation = {name: value * 1.03 if name == "accuracy" else value for name, value in validation.items()}
        end(self, found, validation, samples, spent)

    training.Trainer._end_epoch = changed  # type: ignore[method-assign]


@mutant("average", ("torch", "tf"))
def metrics_count_batches() -> None:
    """Training metrics are means over batches, whatever their size."""
    if backends()[0].__name__ == "hvdkit.torch":
        from hvdkit.torch.trainer import TorchTrainer

        start = TorchTrainer._start_sums

        def counting(self: Any, earlier: Any) -> None:
            start(self, earlier)
            add = self._totals.add
            self._totals.add = lambda name, mean, count: add(name, mean, 1 if count else 0)

        TorchTrainer._start_sums = counting  # type: ignore[method-assign]
        return
    add = metrics.Sums.add

    def once(self: Any, name: str, total: float, count: float) -> None:
        add(self, name, total / count if count else 0.0, 1.0 if count else 0.0)

    metrics.Sums.add = once  # type: ignore[method-assign]


@mutant("average", stop_at={"val_loss": 0.01})
def never_stops() -> None:
    """Training goes on although its target is reached."""
    training.Trainer._reached = lambda self, record: False  # type: ignore[method-assign]


@mutant("average", stop_at={"accuracy": 0.99})
def stops_too_early() -> None:
    """Training stops after its first epoch whatever its target is."""
    training.Trainer._reached = lambda self, record: bool(self.recipe.stop_at)  # type: ignore[method-assign]


def two_groups(parameters: Any) -> Any:
    import torch

    first, *others = parameters
    return torch.optim.SGD([{"params": [first], "lr": 0.05}, {"params": others, "lr": 0.02}], lr=0.05, momentum=0.9)


@mutant("scale_lr", ("torch",), optimizer={"torch": two_groups})
def only_the_first_groups_rate() -> None:
    """Only the first group of parameters has the planned learning rate."""
    from hvdkit.torch import rates, trainer

    set_rate = rates.set_rate

    def first(optimizer: Any, rate: float, bases: list[float]) -> None:
        kept = [group["lr"] for group in optimizer.param_groups]
        set_rate(optimizer, rate, bases)
        for group, old in list(zip(optimizer.param_groups, kept, strict=True))[1:]:
            group["lr"] = old

    trainer.set_rate = first  # type: ignore[attr-defined]
