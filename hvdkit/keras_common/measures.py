"""Loss and metrics of a Keras model's outputs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from hvdkit.errors import HvdkitError, RecipeError
from hvdkit.job.metrics import Sums
from hvdkit.job.world import World
from hvdkit.keras_common.compat import keras, reshape, to_numpy
from hvdkit.keras_common.metric_objects import KerasMetrics, is_metric
from hvdkit.training.checks import BINARY, CATEGORICAL, LOGITS, ONE_HOT, PROBABILITIES, accuracy_form
from hvdkit.training.metric_objects import Mean, sorted_metrics


class Measures:
    """What is measured, the same on all ranks.

    Attributes:
        loss: Of targets and outputs; None for none.
        means: Callables of targets and outputs by their names, whose results are averaged.
        objects: The metrics that keep a state of their own.
        names: Of the loss, if there is one, and of the metrics.

    Raises:
        RecipeError: A metric is unknown, has the name of another, or is missing on a rank; on every rank.
        ModelError: A metric object cannot be joined over ranks; on every rank.
    """

    def __init__(self, loss: Any, entries: Iterable[Any], world: World, framework: str) -> None:
        self.loss = loss
        self.names, self.means, self.objects = sorted_metrics(
            entries,
            loss,
            world,
            objects_in=lambda entry: {entry.name: entry} if is_metric(entry) else {},
            mean_of=lambda entry: _mean(entry, loss, framework),
            join=lambda held: KerasMetrics(list(held.values())),
        )

    def add(self, sums: Sums, outputs: Any, targets: Any, count: int, penalty: float = 0.0) -> None:
        """Add a batch of this rank: its loss, what layers add to it, and its metrics."""
        if self.loss is not None:
            entries = _entries(self.loss, targets, count)
            mean = _average(self.loss(targets, outputs)) if entries else 0.0
            sums.add("loss", (mean + penalty) * entries, entries)
        for name, measured in self.means.items():
            sums.add(name, _average(measured(targets, outputs)) * count, count)
        self.objects.update(outputs, targets, count)


def _mean(entry: Any, loss: Any, framework: str) -> tuple[str, Mean]:
    if isinstance(entry, str) and entry == "accuracy":
        return "accuracy", accuracy(loss_kind(loss))
    if not callable(entry) or isinstance(entry, type):
        raise RecipeError(
            f"metric {entry!r} is unknown in {framework}; use 'accuracy', a metric object of Keras, or a callable "
            "(targets, outputs) -> mean"
        )
    if hasattr(entry, "update_state") and hasattr(entry, "result"):
        raise RecipeError(
            f"metric {type(entry).__name__} ({type(entry).__module__}) keeps its own state but is no metric of this "
            "Keras; use one of keras.metrics"
        )
    if getattr(entry, "reduction", None) == "sum":
        raise RecipeError(f"metric {type(entry).__name__} has reduction='sum'; hvdkit needs the mean of a batch")
    return getattr(entry, "__name__", type(entry).__name__), entry


def loss_kind(loss: Any) -> str | None:
    """Return what kind of outputs and targets a loss is for; None if it is not known."""
    losses = keras().losses
    if isinstance(loss, losses.BinaryCrossentropy):
        return LOGITS if loss.from_logits else PROBABILITIES
    if loss is losses.binary_crossentropy:
        return PROBABILITIES
    if isinstance(loss, losses.CategoricalCrossentropy) or loss is losses.categorical_crossentropy:
        return CATEGORICAL
    return None


def accuracy(kind: str | None) -> Mean:
    """Return the accuracy of each place as a function of targets and outputs, chosen by their shapes."""

    def measured(targets: Any, outputs: Any) -> Any:
        metrics = keras().metrics
        form = accuracy_form(outputs.shape, targets.shape, class_axis=-1, loss=kind)
        if form == BINARY:
            threshold = 0.0 if kind == LOGITS else 0.5
            return metrics.binary_accuracy(reshape(targets, (-1, 1)), reshape(outputs, (-1, 1)), threshold=threshold)
        if form == ONE_HOT:
            return metrics.categorical_accuracy(targets, outputs)
        return metrics.sparse_categorical_accuracy(targets, outputs)

    return measured


def compiled_names(entries: Iterable[Any]) -> tuple[list[str], HvdkitError | None]:
    """Return what ``compile`` calls the loss and metrics, and what is wrong with one that ranks cannot join."""
    held = [entry for entry in entries if is_metric(entry)]
    names = [getattr(entry, "name", getattr(entry, "__name__", str(entry))) for entry in entries]
    try:
        KerasMetrics(held)
    except HvdkitError as error:
        return ["loss", *names], error
    return ["loss", *names], None


def accuracy_metric(form: str, kind: str | None) -> Any:
    """Return the metric object ``accuracy`` for ``compile``."""
    metrics = keras().metrics
    if form == BINARY:
        return metrics.BinaryAccuracy(name="accuracy", threshold=0.0 if kind == LOGITS else 0.5)
    if form == ONE_HOT:
        return metrics.CategoricalAccuracy(name="accuracy")
    return metrics.SparseCategoricalAccuracy(name="accuracy")


def _average(value: Any) -> float:
    return float(np.mean(np.asarray(to_numpy(value) if hasattr(value, "shape") else value, np.float64)))


def _entries(loss: Any, targets: Any, count: int) -> int:
    """Return what the mean loss of a batch was divided by: its samples, or the labels that count."""
    ignored = getattr(loss, "ignore_class", None)
    return count if ignored is None else int((to_numpy(targets) != ignored).sum())
