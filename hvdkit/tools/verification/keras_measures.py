"""Losses and metrics of the reference for Keras models: those that ``fit`` has, and those of a loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

import numpy as np

from hvdkit.keras_common.compat import as_tensor, keras, library, mask_of, to_numpy
from hvdkit.recipe.trees import is_branch, map_tree
from hvdkit.training.metric_objects import flat_results


class Weighted(NamedTuple):
    """Targets, and the weights that the recipe's data give to their samples."""

    targets: Any
    weights: Any


def split_targets(targets: Any) -> tuple[Any, Any]:
    """Return targets and weights of samples, None where there are none."""
    return (targets.targets, targets.weights) if isinstance(targets, Weighted) else (targets, None)


class Measures(Protocol):
    """What the reference measures.

    Attributes:
        varies: Whether the mean loss may be divided by something else than the number of samples.
    """

    varies: bool

    def prepare(self, view: Any, x: Any, y: Any, weights: Any) -> None:
        """Look at a first batch, on which it may depend what is measured."""

    def loss(self, x: Any, y: Any, weights: Any, outputs: Any) -> Any:
        """Return the mean loss of a batch, with what layers add to it."""

    def size(self, outputs: Callable[[], Any], y: Any, weights: Any, count: int) -> float:
        """Return what the mean loss of a batch stands for; its outputs are made if they are needed."""

    def measure(self, outputs: Any, y: Any, weights: Any, count: float) -> dict[str, float]:
        """Take a batch up; return those of its metrics that are averaged over samples."""

    def results(self) -> dict[str, float]:
        """Return the other metrics, and start them anew."""


class CompiledMeasures:
    """Loss and metrics as ``compile`` takes them: any that ``fit`` has, over several outputs too."""

    varies = True

    def __init__(self, model: Any, optimizer: Any, loss: Any, metrics: Iterable[Any]) -> None:
        self._model, self._optimizer, self._loss, self._metrics = model, optimizer, loss, list(metrics)
        self._prepared, self._measured = False, False

    def prepare(self, view: Any, x: Any, y: Any, weights: Any) -> None:
        """Compile; which accuracy is meant depends on the shapes of outputs and targets."""
        if self._prepared:
            return
        self._prepared = True
        entries = [self._accuracy(view, x, y) if entry == "accuracy" else entry for entry in self._metrics]
        which = "metrics" if weights is None else "weighted_metrics"
        still = {"jit_compile": False} if library() == "tf" else {}
        self._model.compile(optimizer=self._optimizer, loss=self._loss, **{which: entries or None}, **still)
        self._model.reset_metrics()

    def _accuracy(self, view: Any, x: Any, y: Any) -> Any:
        draws = view.draws(self._model)
        outputs = self._model(map_tree(as_tensor, x), training=False)
        view.set_draws(self._model, draws)
        metrics = keras().metrics
        if is_branch(outputs):
            return metrics.SparseCategoricalAccuracy(name="accuracy")
        if outputs.shape[-1] == 1:
            logits = getattr(self._loss, "from_logits", False)
            return metrics.BinaryAccuracy(name="accuracy", threshold=0.0 if logits else 0.5)
        if len(outputs.shape) == len(y.shape) and outputs.shape[-1] == y.shape[-1]:
            return _one_hot_accuracy(self._loss)
        return metrics.SparseCategoricalAccuracy(name="accuracy")

    def loss(self, x: Any, y: Any, weights: Any, outputs: Any) -> Any:
        """Return the mean loss of a batch, with what layers add to it."""
        return self._model.compute_loss(x=x, y=y, y_pred=outputs, sample_weight=weights)

    def size(self, outputs: Callable[[], Any], y: Any, weights: Any, count: int) -> float:
        """Return the entries that a mask or the loss leave, or their weights, if these are what the loss divides by."""
        if not self.varies:
            return count
        made = outputs()
        mask = None if is_branch(made) else mask_of(made)
        ignored = getattr(self._loss, "ignore_class", None)
        by_weights = getattr(self._loss, "reduction", "") == "mean_with_sample_weight" and weights is not None
        if mask is None and ignored is None and not by_weights:
            self.varies = False
            return count
        if mask is not None:
            self._metrics = []  # outputs bring no mask to metrics here
        shape = tuple(made.shape[:-1])
        left = np.ones(shape, bool) if mask is None else np.broadcast_to(to_numpy(mask), shape)
        if ignored is not None:
            left = left & (np.asarray(y).reshape(shape) != ignored)
        factors = np.asarray(weights, np.float64) if by_weights else np.ones(len(left))
        return float(np.sum(left * factors.reshape(factors.shape + (1,) * (left.ndim - factors.ndim))))

    def measure(self, outputs: Any, y: Any, weights: Any, count: float) -> dict[str, float]:
        """Let the model's metrics take a batch."""
        if count and self._metrics:
            self._measured = True
            targets = map_tree(as_tensor, y)
            self._model.compute_metrics(None, targets, outputs, None if weights is None else as_tensor(weights))
        return {}

    def results(self) -> dict[str, float]:
        """Return the model's metrics, if they were given any batch, and start them anew."""
        found: dict[str, float] = {}
        for name, value in self._model.get_metrics_result().items() if self._measured else ():
            found |= flat_results(name, value)
        self._model.reset_metrics()
        self._measured = False
        losses = {"loss", *(f"{name}_loss" for name in getattr(self._model, "output_names", None) or ())}
        return {name: value for name, value in found.items() if name not in losses}


def _one_hot_accuracy(loss: Any) -> Any:
    """Return the accuracy of classes, or of single places where the loss takes each for itself."""
    metrics = keras().metrics
    if isinstance(loss, keras().losses.BinaryCrossentropy):
        return metrics.BinaryAccuracy(name="accuracy", threshold=0.0 if loss.from_logits else 0.5)
    return metrics.CategoricalAccuracy(name="accuracy")


class PlainMeasures:
    """Loss and metrics of a loop in TensorFlow: callables of targets and outputs, and metric objects."""

    varies = False

    def __init__(self, model: Any, optimizer: Any, loss: Any, metrics: Iterable[Any]) -> None:
        del optimizer
        entries = list(metrics)
        self._model, self._loss = model, loss
        self._objects = [entry for entry in entries if hasattr(entry, "update_state")]
        self._means = [entry for entry in entries if not hasattr(entry, "update_state")]
        self.results()

    def prepare(self, view: Any, x: Any, y: Any, weights: Any) -> None:
        """Do nothing."""

    def loss(self, x: Any, y: Any, weights: Any, outputs: Any) -> Any:
        """Return the mean loss of a batch, with what layers add to it."""
        import tensorflow as tf

        return tf.add_n([tf.reduce_mean(self._loss(y, outputs)), *self._model.losses])

    def size(self, outputs: Callable[[], Any], y: Any, weights: Any, count: int) -> float:
        """Return the samples; hvdkit refuses losses that divide by anything else in a loop."""
        return count

    def measure(self, outputs: Any, y: Any, weights: Any, count: float) -> dict[str, float]:
        """Let metric objects take a batch; return the others' means."""
        targets = map_tree(as_tensor, y)
        for metric in self._objects if count else ():
            metric.update_state(targets, outputs)
        means: dict[str, float] = {}
        for entry in self._means if count else ():
            if entry == "accuracy":
                means[entry] = _right(np.asarray(y), to_numpy(outputs), self._loss)
            else:
                name = getattr(entry, "__name__", type(entry).__name__)
                means[name] = float(np.mean(np.asarray(entry(targets, outputs), np.float64)))
        return means

    def results(self) -> dict[str, float]:
        """Return the results of metric objects, and start them anew."""
        found: dict[str, float] = {}
        for metric in self._objects:
            if metric.variables and any(np.any(to_numpy(variable)) for variable in metric.variables):
                found |= flat_results(metric.name, metric.result())
            metric.reset_state()
        return found


def _right(y: Any, outputs: Any, loss: Any) -> float:
    """Return the accuracy, of whatever the shapes say."""
    losses = keras().losses
    single = outputs.shape[-1] == 1 or y.size == outputs.size
    if single and (outputs.shape[-1] == 1 or isinstance(loss, losses.BinaryCrossentropy)):
        threshold = 0.0 if getattr(loss, "from_logits", False) else 0.5
        return float(np.mean((outputs.reshape(-1) > threshold) == (y.reshape(-1) > 0.5)))
    labels = y.argmax(-1) if y.shape == outputs.shape else y.reshape(outputs.shape[:-1])
    return float(np.mean(outputs.argmax(-1) == labels))
