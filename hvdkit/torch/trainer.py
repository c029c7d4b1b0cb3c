"""The training loop in torch."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch

from hvdkit.errors import DataError, ModelError, RecipeError
from hvdkit.job.metrics import Sums
from hvdkit.torch.building import build_loss, refuse_probabilities
from hvdkit.torch.gradients.distribution import compression_losses
from hvdkit.torch.precision import Precision
from hvdkit.torch.rates import set_rate
from hvdkit.torch.sharding import ArrayDataset
from hvdkit.torch.synchronising import average_buffers
from hvdkit.torch.tensors import from_array, numpy_arrays
from hvdkit.training.trainer import LoopTrainer, Setup


class TorchTrainer(LoopTrainer):
    """A training run in torch."""

    framework: ClassVar[str] = "torch"

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._device = setup.device
        source = setup.recipe.pick("loss", "torch")
        self._loss = build_loss(source)
        self._unchecked = source == "sparse_categorical_crossentropy"
        self._metrics = [_metric(entry) for entry in setup.recipe.metrics]
        self._bases = [float(group["lr"]) for group in self.optimizer.param_groups]
        self._precision = Precision(
            setup.recipe.precision, self._device, self.optimizer, setup.recipe.distribute is not None
        )
        self._losses = {"clipped": 0, "lost": 0}
        if setup.recipe.compile:
            # in place: class, parameters and the names of a checkpoint stay
            self.model.compile()

    def _train_epoch(self) -> Sums:
        self.model.train()
        totals = _Totals(self._device)
        self.optimizer.zero_grad()
        for batch in self.batches:
            x, y = self._on_device(batch)
            self._pass(x, y, self.batches.weight, self.batches.count, totals)
            if self.batches.last:
                self._update()
        return totals.sums()

    def _pass(self, x: Any, y: Any, weight: float, count: int, totals: _Totals) -> Any:
        with self._precision.autocast():
            outputs = self.model(x)
            if self._unchecked:
                self._unchecked = False
                refuse_probabilities(self.model, outputs)
                _check_targets(outputs, self._all_targets(y))
            loss = self._loss(outputs, y)
        self._precision.backward(loss if weight == 1.0 else loss * weight)
        totals.add("loss", loss, count)
        for name, metric in self._metrics:
            totals.add(name, metric(outputs, y), count)
        return loss

    def _all_targets(self, y: torch.Tensor) -> torch.Tensor:
        """Return the labels of all ranks where they are at hand, so that all ranks see the same error."""
        dataset = getattr(self.batches, "dataset", None)
        return dataset.y if isinstance(dataset, ArrayDataset) else y

    def _update(self) -> None:
        set_rate(self.optimizer, self.rates.at(self.global_step), self._bases)
        self._precision.step()
        self.optimizer.zero_grad()
        self._end_step()

    def step(self, batch: Any) -> dict[str, float]:
        """Do one update on this rank's batch ``(x, y)`` of tensors or arrays; return this rank's loss."""
        self.model.train()
        totals = _Totals(self._device)
        x, y = self._on_device(batch)
        self._pass(x, y, 1.0, len(x), totals)
        self._update()
        return totals.sums().means()

    def _evaluate(self, data: Any) -> dict[str, float]:
        average_buffers(self.model)
        totals = _Totals(self._device)
        self.model.eval()
        with torch.no_grad(), self._precision.autocast():
            for batch in self._evaluation_batches(data):
                x, y = self._on_device(batch)
                outputs = self.model(x)
                totals.add("loss", self._loss(outputs, y), len(x))
                for name, metric in self._metrics:
                    totals.add(name, metric(outputs, y), len(x))
        return self._over_ranks(totals.sums()).means()

    def predict(self, inputs: Any) -> Any:
        """Return the model's outputs for images NHWC or other arrays, as a NumPy array."""
        self.model.eval()
        x = from_array(inputs)
        with torch.no_grad(), self._precision.autocast():
            outputs = self.model((x.permute(0, 3, 1, 2) if x.dim() == 4 else x).to(self._device))
        return (outputs if self.recipe.precision == "fp32" else outputs.float()).cpu().numpy()

    def weights(self) -> dict[str, Any]:
        """Return this rank's parameters and buffers as named NumPy arrays."""
        return numpy_arrays(self.model)

    def _counts(self) -> dict[str, int]:
        """Return what this epoch skipped, clipped and lost, over all ranks."""
        counts = self._precision.take_skipped()
        settings = self.recipe.distribute
        if settings is not None and settings.compression != "none":
            before, self._losses = self._losses, compression_losses(self.optimizer)
            spent = [self._losses[name] - before[name] for name in ("clipped", "lost")]
            clipped, lost = self.world.allreduce(spent, "sum").tolist()
            counts |= {"clipped_gradients": clipped, "lost_gradients": lost}
        return counts

    def _position(self) -> dict[str, Any]:
        return {**super()._position(), **self._precision.state()}

    def _take_position(self, state: dict[str, Any]) -> None:
        super()._take_position(state)
        self._precision.take_state(state)

    def _on_device(self, batch: Any) -> Any:
        return [torch.as_tensor(part).to(self._device, non_blocking=True) for part in batch]


class _Totals:
    """Sums of per-batch means times counts, kept on the device until they are read."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._values: dict[str, torch.Tensor] = {}
        self._counts: dict[str, int] = {}

    def add(self, name: str, mean: Any, count: int) -> None:
        if name not in self._values:
            self._values[name] = torch.zeros((), dtype=torch.float64, device=self._device)
            self._counts[name] = 0
        value = mean.detach() if isinstance(mean, torch.Tensor) else torch.as_tensor(mean)
        self._values[name].add_(value.to(self._device), alpha=count)
        self._counts[name] += count

    def sums(self) -> Sums:
        sums = Sums()
        for name, value in self._values.items():
            sums.add(name, value.item(), self._counts[name])
        if math.isnan(sums.means().get("loss", 0.0)) and sums.count("loss"):
            raise ModelError("the training loss is NaN; lower the learning rate or check the data")
        return sums


def _metric(entry: Any) -> tuple[str, Any]:
    if entry == "accuracy":
        return "accuracy", lambda outputs, y: (outputs.argmax(1) == y).double().mean()
    if callable(entry):
        return getattr(entry, "__name__", type(entry).__name__), entry
    raise RecipeError(f"metric {entry!r} is unknown in torch; use 'accuracy' or a callable (outputs, targets) -> mean")


def _check_targets(outputs: torch.Tensor, y: torch.Tensor) -> None:
    if y.is_floating_point() or outputs.dim() != 2 or not len(y):
        return
    highest, lowest = int(y.max()), int(y.min())
    if lowest < 0 or highest >= outputs.shape[1]:
        raise DataError(
            f"label {lowest if lowest < 0 else highest} is out of range; the model has {outputs.shape[1]} outputs, "
            f"which allow labels 0 to {outputs.shape[1] - 1}"
        )


def make_trainer(setup: Setup) -> TorchTrainer:
    """Make the trainer from what the eight steps have prepared."""
    return TorchTrainer(setup)
