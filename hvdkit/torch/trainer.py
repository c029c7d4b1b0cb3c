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
from hvdkit.torch.measures import Measures, Totals
from hvdkit.torch.precision import Precision
from hvdkit.torch.rates import set_rate
from hvdkit.torch.scheduling import Scheduling, refuse_hidden_scheduler
from hvdkit.torch.synchronising import synchronise_statistics
from hvdkit.torch.tensors import channels_first, from_array, numpy_arrays
from hvdkit.training.batches import Batch
from hvdkit.training.checks import check_outputs
from hvdkit.training.loop_trainer import LoopTrainer
from hvdkit.training.modes import evaluating
from hvdkit.training.observers import Record
from hvdkit.training.trainer import Setup


class TorchTrainer(LoopTrainer):
    """A training run in torch."""

    framework: ClassVar[str] = "torch"

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._device = setup.device
        source = setup.recipe.pick("loss", "torch")
        self._loss = build_loss(source)
        self._unchecked = source == "sparse_categorical_crossentropy"
        self._measures = Measures(self._loss, setup.recipe.metrics, self._device, setup.world)
        self._objects = self._measures.objects
        self._bases = [float(group["lr"]) for group in self.optimizer.param_groups]
        self._precision = Precision(
            setup.recipe.precision, self._device, self.optimizer, setup.recipe.distribute is not None
        )
        self._losses = {"clipped": 0, "lost": 0}
        self._rates_set: list[Any] | None = None
        self._scheduling: Scheduling | None = None
        refuse_hidden_scheduler(self.optimizer)
        if setup.recipe.scheduler is not None:
            self._scheduling = Scheduling(setup.recipe.scheduler, self.optimizer, self.rates)
            self._scheduling.check(self._measured())
        late = setup.recipe.broadcast is not None and setup.recipe.broadcast.when == "after_first_step"
        if late or setup.recipe.distribute is None:
            drift.leave_alone(self.optimizer)
        if setup.recipe.compile:
            # in place: class, parameters and the names of a checkpoint stay
            self.model.compile()

    def _metric_names(self) -> list[str]:
        return self._measures.names

    def _measured(self) -> list[str]:
        names = self._metric_names()
        return names + [f"val_{name}" for name in names if self._setup.validation is not None]

    def _train_epoch(self) -> None:
        self.model.train()
        self.optimizer.zero_grad()
        super()._train_epoch()

    def _train_on(self, batch: Batch) -> dict[str, float]:
        self.model.train()
        return super()._train_on(batch)

    def _start_sums(self, earlier: Sums) -> None:
        self._totals = Totals(self._device, earlier)

    def _sums(self) -> Sums:
        return self._totals.sums()

    def _pass(self, batch: Batch) -> None:
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
        self._totals.add("loss", loss, batch.count)
        self._measures.add(self._totals, outputs, y, batch.count)
        if batch.last:
            self._update()

    def _update(self) -> None:
        if self._scheduling is None:
            self._set_rate()
        else:
            self._scheduling.before_step()
        self._precision.step()
        self.optimizer.zero_grad()
        if self._scheduling is not None:
            self._scheduling.after_step(self.global_step + 1)

    def _set_rate(self) -> None:
        rates = _rates(self.optimizer)
        # the rates of groups that were added meanwhile are those of one process too
        self._bases += [float(rate) for rate in rates[len(self._bases) :]]
        if self._rates_set is not None and self._rates_set != rates[: len(self._rates_set)]:
            raise RecipeError(
                "the optimizer's learning rate was changed during training, which the recipe would overrule; give "
                "Recipe(scheduler=...) or Recipe(schedule=...)"
            )
        set_rate(self.optimizer, self.rates.at(self.global_step), self._bases)
        self._rates_set = _rates(self.optimizer)

    def _last_rate(self) -> float:
        return super()._last_rate() if self._scheduling is None else self._scheduling.last_rate

    def _note_epoch(self, record: Record) -> None:
        if self._scheduling is not None:
            self._scheduling.after_epoch(record)

    def _evaluate(self, data: Any) -> dict[str, float]:
        batches = self._evaluation_batches(data)
        synchronise_statistics(self.model)
        world = self.world if self.recipe.average is not None else None
        with evaluating(self.model), self._precision.autocast():
            results: dict[str, float] = self._measures.over(self.model, batches, self._to_evaluate, world)
        return results

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
        scheduled = {} if self._scheduling is None else self._scheduling.state()
        return {**super()._position(), **self._precision.state(), **scheduled}

    def _take_position(self, state: dict[str, Any]) -> None:
        super()._take_position(state)
        self._precision.take_state(state)
        self._rates_set = None
        if self._scheduling is not None:
            self._scheduling.follow(self.rates)
            self._scheduling.take_state(state)

    def _to_evaluate(self, batch: Batch) -> list[Any]:
        self._announce("on_evaluation_batch", batch)
        return self._on_device(batch)

    def _on_device(self, batch: Batch) -> list[Any]:
        def move(part: Any) -> torch.Tensor:
            return torch.as_tensor(part).to(self._device, non_blocking=True)

        return [map_tree(move, side) for side in batch]


def _rates(optimizer: torch.optim.Optimizer) -> list[Any]:
    return [group["lr"] for group in optimizer.param_groups]


def make_trainer(setup: Setup) -> TorchTrainer:
    """Make the trainer from what the eight steps have prepared."""
    return TorchTrainer(setup)
