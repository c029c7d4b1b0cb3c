"""The training loop in torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from hvdkit.errors import RecipeError
from hvdkit.job.metrics import Sums
from hvdkit.recipe.trees import map_tree
from hvdkit.torch import drift
from hvdkit.torch.building import build_loss, is_activated
from hvdkit.torch.copies import Copies
from hvdkit.torch.distribution import compression_losses
from hvdkit.torch.graphs.updates import Pass, Updates
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
        self._copies = Copies(torch.device(self._device))
        self._unchecked = source == "sparse_categorical_crossentropy"
        self._measures = Measures(self._loss, setup.recipe.metrics, self._device, setup.world)
        self._objects = self._measures.objects
        self._bases = [float(group["lr"]) for group in self.optimizer.param_groups]
        self._precision = Precision(
            setup.recipe.precision, self._device, self.optimizer, setup.recipe.distribute is not None
        )
        self._totals = Totals(self._device)
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
        self._updates = Updates(setup, self.model, self.optimizer, self._precision, self._host_functions())

    def _host_functions(self) -> list[Any]:
        return [self._loss, *self._measures.functions]

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
        with self._updates.pass_by_pass():
            return super()._train_on(batch)

    def _start_sums(self, earlier: Sums) -> None:
        self._totals.begin(earlier)

    def _sums(self) -> Sums:
        return self._totals.sums()

    def _pass(self, batch: Batch) -> None:
        passes = self._updates.take(batch, self._on_device(batch))
        if not passes:
            return
        if batch.last:
            self._before_update()
        outputs = self._updates.run(passes, self._compute)
        for done, found in zip(passes, outputs, strict=True):
            self._totals.count("loss", done.count)
            self._measures.count(self._totals, found, done.targets, done.count)
        if batch.last and self._scheduling is not None:
            self._scheduling.after_step(self.global_step + 1)

    def _compute(self, passes: Sequence[Pass]) -> list[Any]:
        """Do passes, and the update behind its last one; return outputs. Nothing in here may count on the host."""
        outputs = []
        for each in passes:
            outputs.append(self._backward(each))
            if each.last:
                self._precision.step()
                self.optimizer.zero_grad()
        return outputs

    def _backward(self, each: Pass) -> Any:
        with self._precision.autocast():
            outputs = self.model(each.inputs)
            if self._unchecked:
                self._unchecked = False
                self._check_outputs(outputs, each.targets)
            loss = self._loss(outputs, each.targets)
        self._precision.backward(loss if each.weight == 1.0 else loss * each.weight)
        self._totals.add_on_device("loss", loss, each.count)
        self._measures.add_on_device(self._totals, outputs, each.targets, each.count)
        return map_tree(torch.Tensor.detach, outputs) if self._objects.names else None

    def _check_outputs(self, outputs: Any, targets: Any) -> None:
        labels = targets if self.batches.targets is None else self.batches.targets
        found = outputs.detach().float().cpu().numpy(), labels.cpu().numpy()
        check_outputs(*found, self.world, activated=is_activated(self.model))

    def _before_update(self) -> None:
        if self._scheduling is None:
            self._set_rate()
        else:
            self._scheduling.before_step()

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
        return [map_tree(self._copies.bring, side) for side in batch]

    def _how(self) -> str:
        return super()._how() + self._updates.told()


def _rates(optimizer: torch.optim.Optimizer) -> list[Any]:
    return [group["lr"] for group in optimizer.param_groups]


def make_trainer(setup: Setup) -> TorchTrainer:
    """Make the trainer from what the eight steps have prepared."""
    return TorchTrainer(setup)
