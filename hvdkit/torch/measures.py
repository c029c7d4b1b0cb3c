"""Loss and metrics of a model's outputs in torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from hvdkit.errors import ModelError, RecipeError
from hvdkit.job.metrics import Sums
from hvdkit.job.world import World
from hvdkit.torch.losses import divisor, kind_of
from hvdkit.torch.metric_objects import TorchMetrics, named_objects
from hvdkit.training.checks import BINARY, LOGITS, ONE_HOT, accuracy_form
from hvdkit.training.evaluation_batches import evaluation_pairs
from hvdkit.training.metric_objects import Mean, sorted_metrics


class Totals:
    """Sums of per-batch means times counts, kept on the device until they are read."""

    def __init__(self, device: str | torch.device) -> None:
        self._device = device
        self._values: dict[str, torch.Tensor] = {}
        self._counts: dict[str, float] = {}

    def begin(self, earlier: Sums) -> None:
        """Begin anew in the same memory, which a recorded update adds to."""
        for name, value in self._values.items():
            value.zero_()
            self._counts[name] = 0
        for name, (total, count) in earlier.totals().items():
            self._open(name)
            self._values[name].fill_(total)
            self._counts[name] = count

    def add(self, name: str, mean: Any, count: float) -> None:
        """Add the mean over ``count`` samples; nothing for 0."""
        self.add_on_device(name, mean, count)
        self.count(name, count)

    def count(self, name: str, count: float) -> None:
        """Count the samples of what was added on the device."""
        self._counts[name] += count

    def _open(self, name: str) -> None:
        if name not in self._values:
            self._values[name] = torch.zeros((), dtype=torch.float64, device=self._device)
            self._counts[name] = 0

    def add_on_device(self, name: str, mean: Any, count: float) -> None:
        """Add without counting, which a recorded update cannot."""
        self._open(name)
        if not count:
            return
        value = mean.detach() if isinstance(mean, torch.Tensor) else torch.as_tensor(mean)
        if value.numel() != 1:
            raise ModelError(f"{name!r} of a batch has shape {tuple(value.shape)}; return its mean over the samples")
        self._values[name].add_(value.reshape(()).to(self._device), alpha=count)

    def sums(self) -> Sums:
        """Return the sums and counts."""
        sums = Sums()
        found = torch.stack(list(self._values.values())).tolist() if self._values else []
        for name, value in zip(self._values, found, strict=True):
            sums.add(name, value, self._counts[name])
        return sums


class Measures:
    """What is measured, the same on all ranks.

    Attributes:
        names: Of the loss, if there is one, and of the metrics.
        objects: The metrics that keep a state of their own.

    Raises:
        RecipeError: A metric is unknown, cannot be joined, has the name of another, or is missing on a rank; on every
            rank.
    """

    def __init__(self, loss: Any, entries: Iterable[Any], device: str | torch.device, world: World) -> None:
        self.loss, self._device = loss, device
        self.names, self._means, self.objects = sorted_metrics(
            entries,
            loss,
            world,
            objects_in=named_objects,
            mean_of=lambda entry: _mean(entry, loss),
            join=lambda held: TorchMetrics(held, device),
        )

    def add_on_device(self, totals: Totals, outputs: Any, targets: Any, count: int) -> None:
        """Add the metrics that are means of a batch, but not its loss, without counting."""
        for name, mean in self._means.items():
            totals.add_on_device(name, mean(outputs, targets), count)

    def count(self, totals: Totals, outputs: Any, targets: Any, count: int) -> None:
        """Count the samples of a batch, and let metrics that keep a state take it."""
        for name in self._means:
            totals.count(name, count)
        self.objects.update(outputs, targets, count)

    @property
    def functions(self) -> list[Any]:
        """The metrics that are means."""
        return list(self._means.values())

    def over(self, model: Any, batches: Iterable[Any], place: Callable[[Any], Any], world: World | None) -> Any:
        """Return loss and metrics of a model in its present mode, over all ranks; None for this rank's own.

        Args:
            model: Takes a batch's inputs.
            batches: Those of ``shard(train=False)``.
            place: Brings a batch to the model's device.
            world: The job.
        """
        totals = Totals(self._device)
        with torch.no_grad(), self.objects.apart():
            for batch in evaluation_pairs(batches):
                inputs, targets = place(batch)
                outputs = model(inputs)
                if self.loss is not None:
                    totals.add("loss", self.loss(outputs, targets), divisor(self.loss, targets, batch.count))
                self.add_on_device(totals, outputs, targets, batch.count)
                self.count(totals, outputs, targets, batch.count)
            sums = totals.sums()
            return (sums if world is None else sums.over_ranks(world)).means() | self.objects.results(world)


def _mean(entry: Any, loss: Any) -> tuple[str, Mean]:
    if entry == "accuracy":
        return "accuracy", _accuracy(kind_of(loss))
    if not callable(entry) or isinstance(entry, type):
        raise RecipeError(
            f"metric {entry!r} is unknown in torch; use 'accuracy', a callable (outputs, targets) -> mean, or an "
            "object of torchmetrics"
        )
    if hasattr(entry, "update") and hasattr(entry, "compute"):
        raise RecipeError(
            f"metric {type(entry).__name__} keeps its own state, which hvdkit cannot join over ranks; use a "
            "torchmetrics.Metric, or a callable (outputs, targets) -> mean"
        )
    if getattr(entry, "reduction", "mean") != "mean":
        raise RecipeError(f"metric {type(entry).__name__} has reduction={entry.reduction!r}; give it 'mean'")
    return getattr(entry, "__name__", type(entry).__name__), entry


def _accuracy(kind: str | None) -> Mean:
    def accuracy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        form = accuracy_form(outputs.shape, targets.shape, class_axis=1, loss=kind)
        if form == BINARY:
            found = (outputs > (0.0 if kind == LOGITS else 0.5)).reshape(-1)
            return (found == targets.reshape(-1).to(found.dtype)).double().mean()
        found = outputs.argmax(1)
        right = targets.argmax(1) if form == ONE_HOT else targets.reshape(found.shape)
        return (found == right).double().mean()

    return accuracy
