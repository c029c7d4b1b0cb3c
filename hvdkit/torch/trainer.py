"""The training loop in torch."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from hvdkit.errors import RecipeError
from hvdkit.job.metrics import Sums
from hvdkit.recipe.trees import map_tree
from hvdkit.torch import drift
from hvdkit.torch.building import build_loss, is_activated
from hvdkit.torch.distribution import compression_losses
from hvdkit.torch.precision import Precision
from hvdkit.torch.rates import set_rate
from hvdkit.torch.synchronising import synchronise_statistics
from hvdkit.torch.tensors import channels_first, from_array, numpy_arrays
from hvdkit.training.batches import Batch
from hvdkit.training.checks import check_accuracy, check_outputs
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
        late = setup.recipe.broadcast is not None and setup.recipe.broadcast.when == "after_first_step"
        if late or setup.recipe.distribute is None:
            drift.leave_alone(self.optimizer)
        if setup.recipe.compile:
            # in place: class, parameters and the names of a checkpoint stay
            self.model.compile()

    def _metric_names(self) -> list[str]:
        return ["loss", *(name for name, _ in self._metrics)]

    def _train_epoch(self) -> Sums:
        self.model.train()
        totals = _Totals(self._device)
        self.optimizer.zero_grad()
        for batch in self.batches:
            self._announce("on_batch", batch)
            self._pass(batch, totals)
            if batch.last:
                self._end_step()
        return totals.sums()

    def _pass(self, batch: Batch, totals: _Totals) -> None:
        x, y = self._on_device(batch)
        with self._precision.autocast():
            outputs = self.model(x)
            if self._unchecked:
                self._unchecked = False
                labels = y if self.batches.targets is None else self.batches.targets
                found = outputs.detach().float().cpu().numpy(), labels.cpu().numpy()
                check_outputs(*found, self.world, activated=is_activated(self.model))
            loss = self._loss(outputs, y)
        self._precision.backward(loss if batch.weight == 1.0 else loss * batch.weight)
        totals.add("loss", loss, batch.count)
        for name, metric in self._metrics:
            totals.add(name, metric(outputs, y), batch.count)
        if batch.last:
            self._update()

    def _update(self) -> None:
        set_rate(self.optimizer, self.rates.at(self.global_step), self._bases)
        self._precision.step()
        self.optimizer.zero_grad()

    def _train_on(self, batch: Batch) -> dict[str, float]:
        self.model.train()
        totals = _Totals(self._device)
        self._pass(batch, totals)
        return totals.sums().means()

    def _evaluate(self, data: Any) -> dict[str, float]:
        synchronise_statistics(self.model)
        totals = _Totals(self._device)
        self.model.eval()
        with torch.no_grad(), self._precision.autocast():
            for batch in self._evaluation_batches(data):
                x, y = self._on_device(batch)
                outputs = self.model(x)
                totals.add("loss", self._loss(outputs, y), batch.count)
                for name, metric in self._metrics:
                    totals.add(name, metric(outputs, y), batch.count)
        return self._over_ranks(totals.sums()).means()

    def predict(self, inputs: Any) -> Any:
        """Return the model's outputs for images NHWC or other arrays, as NumPy arrays."""
        self.model.eval()
        x = map_tree(lambda part: channels_first(from_array(part)).to(self._device), inputs)
        with torch.no_grad(), self._precision.autocast():
            outputs = self.model(x)
        return map_tree(lambda part: (part if self.recipe.precision == "fp32" else part.float()).cpu().numpy(), outputs)

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

    def _on_device(self, batch: Batch) -> list[Any]:
        def move(part: Any) -> torch.Tensor:
            return torch.as_tensor(part).to(self._device, non_blocking=True)

        return [map_tree(move, side) for side in batch]


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
        return sums


def _metric(entry: Any) -> tuple[str, Any]:
    if entry == "accuracy":
        return "accuracy", _accuracy
    if callable(entry):
        return getattr(entry, "__name__", type(entry).__name__), entry
    raise RecipeError(f"metric {entry!r} is unknown in torch; use 'accuracy' or a callable (outputs, targets) -> mean")


def _accuracy(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    check_accuracy(outputs.shape, y.shape, class_axis=1)
    found = outputs.argmax(1)
    return (found == y.reshape(found.shape)).double().mean()


def make_trainer(setup: Setup) -> TorchTrainer:
    """Make the trainer from what the eight steps have prepared."""
    return TorchTrainer(setup)
