"""Step 4 in a recipe: a scheduler of torch's, which knows nothing of the number of processes."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from hvdkit.errors import CheckpointError, RecipeError
from hvdkit.recipe.plan import LearningRate
from hvdkit.recipe.scheduler import Scheduler
from hvdkit.torch.rates import leading_rate, step_rates


class Scheduling:
    """Moves a scheduler on the rates of one process; the optimizer steps at a multiple of them.

    Attributes:
        last_rate: That of the last update, of the group whose rate is shown.
    """

    def __init__(self, declared: Any, optimizer: torch.optim.Optimizer, rates: LearningRate) -> None:
        self._declared = declared if isinstance(declared, Scheduler) else Scheduler(declared)
        self._optimizer = optimizer
        self.follow(rates)
        self._step, self.last_rate = 0, 0.0
        step_rates(optimizer).add(self._share)
        self._scheduler = _made(self._declared, optimizer, rates.steps)

    def follow(self, rates: LearningRate) -> None:
        """Scale by these rates from now on."""
        self._factors = LearningRate(1.0, rates.target / rates.base, rates.steps, rates.warmup_epochs)

    def _share(self) -> float:
        return self._factors.at(self._step)

    def before_step(self) -> None:
        """Note the rate of the update that follows."""
        self.last_rate = leading_rate(self._optimizer) * self._share()

    def check(self, metrics: list[str]) -> None:
        """Refuse a metric that nobody measures.

        Raises:
            RecipeError: The message has the metrics' names.
        """
        metric = self._declared.metric
        if metric is not None and metric not in metrics:
            raise RecipeError(f"Scheduler.metric is {metric!r}, but there is no such metric; use {', '.join(metrics)}")

    def after_step(self, step: int) -> None:
        """Note that ``step`` updates are done."""
        self._step = step
        if self._declared.every == "step":
            self._scheduler.step()

    def after_epoch(self, record: dict[str, Any]) -> None:
        """Move at the end of an epoch, whose averaged metrics are the same on every rank."""
        if self._declared.metric is not None:
            self._scheduler.step(record[self._declared.metric])
        elif self._declared.every == "epoch":
            self._scheduler.step()

    def state(self) -> dict[str, Any]:
        """Return the position, for a checkpoint."""
        return {"scheduler": self._scheduler.state_dict(), "last_rate": self.last_rate}

    def take_state(self, state: dict[str, Any]) -> None:
        """Go on from a position.

        Raises:
            CheckpointError: The run was saved without a scheduler.
        """
        if "scheduler" not in state:
            raise CheckpointError("the checkpoint was saved without Recipe.scheduler; start anew, or leave it out")
        self._step, self.last_rate = state["step"], state["last_rate"]
        self._scheduler.load_state_dict(state["scheduler"])


def _made(declared: Scheduler, optimizer: torch.optim.Optimizer, steps: int) -> Any:
    parameters = [
        entry
        for entry in inspect.signature(declared.make).parameters.values()
        if entry.kind in (entry.POSITIONAL_ONLY, entry.POSITIONAL_OR_KEYWORD) and entry.default is entry.empty
    ]
    scheduler = declared.make(*(optimizer, steps)[: max(1, len(parameters))])
    if not isinstance(scheduler, LRScheduler):
        raise RecipeError(f"Recipe.scheduler must return a scheduler of torch's, it gave {type(scheduler).__name__}")
    if scheduler.optimizer is not optimizer:
        raise RecipeError("Recipe.scheduler must make its scheduler for the optimizer that it is given")
    if isinstance(scheduler, ReduceLROnPlateau) != (declared.metric is not None):
        raise RecipeError(
            "ReduceLROnPlateau, and no other scheduler, follows a metric; "
            "write Scheduler(lambda optimizer: ReduceLROnPlateau(optimizer), metric='val_loss')"
        )
    return scheduler


def refuse_hidden_scheduler(optimizer: torch.optim.Optimizer) -> None:
    """Refuse an optimizer whose rates a scheduler drives that the recipe does not know.

    Raises:
        RecipeError: It was made together with one.
    """
    if any("initial_lr" in group for group in optimizer.param_groups):
        raise RecipeError(
            "Recipe.optimizer makes a learning-rate scheduler, which the recipe would overrule; "
            "give it as Recipe(scheduler=lambda optimizer: ...)"
        )
