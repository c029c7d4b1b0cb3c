"""The reference in torch."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from hvdkit.recipe.declaration import Recipe
from hvdkit.recipe.scheduler import Scheduler
from hvdkit.recipe.trees import leaves, map_tree
from hvdkit.tools.verification.held_metrics import HeldMetrics, functions
from hvdkit.tools.verification.layout import Layout, expected_rate
from hvdkit.tools.verification.reference import Gradients, Reference, rows
from hvdkit.tools.verification.storage import Arrays
from hvdkit.torch.building import build_loss, build_optimizer
from hvdkit.torch.losses import divisor
from hvdkit.torch.metric_objects import named_objects

if TYPE_CHECKING:
    from hvdkit.tools.verification.torch_view import TorchView


class TorchReference(Reference):
    """The reference in torch: plain autograd, the user's optimizer and scheduler as they are."""

    def __init__(self, view: TorchView, recipe: Recipe) -> None:
        model = view.build(recipe)
        super().__init__(view, recipe, model, *build_optimizer(recipe.pick("optimizer", "torch"), model))
        self._loss = build_loss(recipe.pick("loss", "torch"))
        held = [named_objects(entry) for entry in recipe.metrics]
        self.held = HeldMetrics({name: metric.to(device_of(model)) for found in held for name, metric in found.items()})
        self._rates = [float(group["lr"]) for group in self.optimizer.param_groups]
        self._parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        self._due: list[float] = []
        self._schedule = None if recipe.scheduler is None else _Schedule(recipe.scheduler, recipe)

    def due_rates(self, layout: Layout, step: int) -> list[float]:
        """Return the rate that update ``step`` (from 0) should have, for each of the optimizer's groups."""
        if self._schedule is not None:
            return self._schedule.rates(self.optimizer, layout, step)
        rate = expected_rate(self.recipe, self.base, layout, step)
        self._due = [rate if own == self.base else own * (rate / self.base) for own in self._rates]
        return self._due

    def move_schedule(self, record: dict[str, float]) -> None:
        """Move a scheduler at the end of an epoch with these averaged metrics."""
        if self._schedule is not None:
            self._schedule.end_epoch(record)

    def gradients(self, inputs: Any, targets: Any, weight: float, count: float) -> Gradients:
        """Return the gradients of ``weight`` times the mean loss, and note loss and metrics."""
        self.model.train()
        self.optimizer.zero_grad()
        x, y = (map_tree(self._tensor, tree) for tree in (inputs, targets))
        outputs = self.model(x)
        loss = self._loss(outputs, y)
        (loss if weight == 1.0 else loss * weight).backward()
        self._measure(loss, outputs, y, int(count), count)
        return [None if p.grad is None else _own(p.grad) for p in self._parameters]

    def apply(self, gradients: Gradients, rate: float) -> None:
        """Clip the gradients and update the weights."""
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = gradient.coalesce() if gradient is not None and gradient.is_sparse else gradient
        grads = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        limit = self.recipe.distribute.clip_norm if self.recipe.distribute else None
        if limit is not None and grads:
            values = [gradient.values() if gradient.is_sparse else gradient for gradient in grads]
            norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(value) for value in values]))
            for gradient in grads:
                gradient.mul_((limit / norm).clamp(max=1.0))
        if self._schedule is not None:
            self._schedule.step(self.optimizer)
            return
        for group, due in zip(self.optimizer.param_groups, self._due or [rate], strict=True):
            group["lr"] = due
        self.optimizer.step()

    def evaluate(self, inputs: Any, targets: Any) -> None:
        """Note loss and metrics of neutral arrays, without training."""
        self.model.eval()
        samples = len(next(leaves(targets)))
        with torch.no_grad():
            for start in range(0, samples, self.recipe.batch_size):
                stop = min(start + self.recipe.batch_size, samples)
                x = map_tree(lambda array: self._tensor(_nchw(array)), rows(inputs, start, stop))
                y = map_tree(lambda array: self._tensor(_label(array)), rows(targets, start, stop))
                outputs = self.model(x)
                loss, taken = self._loss(outputs, y), rows(targets, start, stop)
                self._measure(loss, outputs, y, stop - start, self.divisor(outputs, taken, stop - start))

    def outputs(self, inputs: Any) -> Any:
        """Return what the model makes of inputs in eval mode."""
        self.model.eval()
        with torch.no_grad():
            return self.model(map_tree(self._tensor, inputs))

    def measures_of(self, outputs: Any, targets: Any) -> dict[str, float]:
        """Return the loss of outputs and targets, and metrics that are functions."""
        y = map_tree(self._tensor, targets)
        with torch.no_grad():
            return {"loss": float(self._loss(outputs, y))} | {
                name: float(entry(outputs, y)) for name, entry in functions(self.recipe.metrics).items()
            }

    def divisor(self, outputs: Any, targets: Any, count: int) -> float:
        """Return what the mean loss divides by: the weights of the classes, where it has them."""
        del outputs
        if getattr(self._loss, "weight", None) is None:
            return count
        return float(divisor(self._loss, map_tree(lambda array: self._tensor(_label(array)), targets), count))

    def _measure(self, loss: Any, outputs: Any, y: Any, count: int, divided_by: float) -> None:
        self.note("loss", float(loss.detach()), divided_by)
        outputs = map_tree(torch.Tensor.detach, outputs)
        for entry in self.recipe.metrics:
            if isinstance(entry, str):
                self._measure_accuracy(outputs, y, count)
        for name, entry in functions(self.recipe.metrics).items():
            self.note(name, float(entry(outputs, y)), count)
        self.held.update(outputs, y, count)

    def _measure_accuracy(self, outputs: Any, y: Any, count: int) -> None:
        tensors = isinstance(outputs, torch.Tensor) and isinstance(y, torch.Tensor)
        if tensors and outputs.dim() == y.dim() + 1 and outputs.shape[1] > 1:
            self.note("accuracy", float((outputs.argmax(1) == y).double().mean()), count)

    def _tensor(self, array: Any) -> torch.Tensor:
        return torch.from_numpy(np.asarray(array)).to(device_of(self.model))

    def statistics(self) -> Arrays:
        """Return the buffers."""
        return {name: as_array(value) for name, value in self.model.named_buffers()}

    def write(self, arrays: Arrays) -> None:
        """Assign parameters or buffers by name."""
        tensors = dict([*self.model.named_parameters(), *self.model.named_buffers()])
        with torch.no_grad():
            for name, value in arrays.items():
                tensors[name].copy_(torch.from_numpy(np.array(value)))


class _Schedule:
    """The user's scheduler on the rates of one process; updates are done at a multiple of them."""

    def __init__(self, declared: Any, recipe: Recipe) -> None:
        self._declared = declared if isinstance(declared, Scheduler) else Scheduler(declared)
        self._plain = recipe.replace(scheduler=None)
        self._scheduler: Any = None
        self._factor = 1.0

    def rates(self, optimizer: Any, layout: Layout, step: int) -> list[float]:
        """Return what the optimizer's groups should have in an update."""
        if self._scheduler is None:
            make = self._declared.make
            needed = [
                entry
                for entry in inspect.signature(make).parameters.values()
                if entry.default is entry.empty and entry.kind in (entry.POSITIONAL_ONLY, entry.POSITIONAL_OR_KEYWORD)
            ]
            self._scheduler = make(optimizer, layout.steps) if len(needed) > 1 else make(optimizer)
        self._factor = expected_rate(self._plain, 1.0, layout, step)
        return [float(group["lr"]) * self._factor for group in optimizer.param_groups]

    def step(self, optimizer: Any) -> None:
        """Update the weights, and move the scheduler if it moves with every update."""
        rates = [group["lr"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * self._factor
        optimizer.step()
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        if self._declared.every == "step":
            self._scheduler.step()

    def end_epoch(self, record: dict[str, float]) -> None:
        """Move the scheduler if it moves with every epoch."""
        if self._declared.metric is not None:
            self._scheduler.step(record[self._declared.metric])
        elif self._declared.every == "epoch":
            self._scheduler.step()


def _own(gradient: torch.Tensor) -> torch.Tensor:
    """Return a copy; of a sparse gradient with one entry for each row, as ranks send it."""
    return gradient.detach().coalesce().clone() if gradient.is_sparse else gradient.detach().clone()


def _nchw(array: NDArray[Any]) -> NDArray[Any]:
    return array.transpose(0, 3, 1, 2) if array.ndim == 4 else array


def _label(array: NDArray[Any]) -> NDArray[Any]:
    return array if array.dtype.kind == "f" else array.astype(np.int64)


def device_of(model: Any = None) -> str:
    """Return where a model lies, or would lie."""
    parameter = next(iter(model.parameters()), None) if model is not None else None
    if parameter is not None:
        return str(parameter.device)
    return "cuda:0" if torch.cuda.is_available() else "cpu"


def as_array(tensor: Any) -> NDArray[Any]:
    """Return a copy of a tensor as NumPy's."""
    value = tensor.detach().cpu()
    array: NDArray[Any] = (value.float() if value.dtype == torch.bfloat16 else value).numpy().copy()
    return array
