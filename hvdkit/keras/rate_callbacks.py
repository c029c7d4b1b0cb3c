"""Callbacks that set the learning rate of every update."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from hvdkit.errors import RecipeError
from hvdkit.job import world as worlds
from hvdkit.keras_common.compat import innermost, keras, library, schedule_of, steps_per_execution
from hvdkit.keras_common.gradients.distribution import follow_wrapping, reduction_of
from hvdkit.keras_common.optimizers import rate_of, set_rate
from hvdkit.recipe.plan import LearningRate

_Callback: Any = keras().callbacks.Callback


class RateCallback(_Callback):
    """Sets the rate of every update; a subclass says which it is."""

    def __init__(self, steps_per_epoch: int | None, momentum_correction: bool) -> None:
        super().__init__()
        self._given_steps = steps_per_epoch
        self._correction = momentum_correction
        self._epoch = 0
        self._driving = False

    def rate(self, epoch: int, batch: int) -> float | None:
        """Return the rate of a batch, or None to leave it as it is."""
        raise NotImplementedError

    def steps(self) -> int:
        """Return the batches per epoch.

        Raises:
            RecipeError: Neither ``fit`` nor the user has said.
        """
        steps = self._given_steps or (self.params or {}).get("steps")
        if not steps:
            raise RecipeError(f"{type(self).__name__}: fit does not know its steps; give steps_per_epoch")
        return int(steps)

    def on_train_begin(self, logs: Any = None) -> None:
        """Check what the rate depends on."""
        name, optimizer = type(self).__name__, self.model.optimizer
        follow_wrapping(optimizer)
        if reduction_of(innermost(optimizer)) is None:
            raise RecipeError(
                f"{name}: the optimizer is not distributed, so every process would train alone; compile the model "
                "with hvdkit.keras.distribute(optimizer, model)"
            )
        if schedule_of(optimizer) is not None:
            raise RecipeError(
                f"{name}: the optimizer's learning rate is a {type(schedule_of(optimizer)).__name__}; give it a "
                "number, or leave the callback out and scale the schedule with hvdkit.keras.scale_lr(schedule)"
            )
        if library() != "jax" and steps_per_execution(self.model) != 1:
            raise RecipeError(f"{name} sets the rate of every batch; compile the model with steps_per_execution=1")
        self._driving = False

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Note the epoch; on JAX, hand over the rates of the whole run before its first batch."""
        self._epoch = epoch
        if library() == "jax" and not self._driving:
            self._driving = True
            self._drive(epoch)

    def _drive(self, epoch: int) -> None:
        from hvdkit.keras_common.rates.driven_rates import driven_rate

        steps, last = self.steps(), int(self.params["epochs"])
        driven = driven_rate(self.model.optimizer)
        driven.momentum_correction = self._correction
        rates = [self.rate(each, batch) for each in range(epoch, last) for batch in range(steps)]
        driven.drive(int(self.model.optimizer.iterations), rates)
        self.model.make_train_function(force=True)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Set the rate of this batch."""
        if library() == "jax":
            return
        rate = self.rate(self._epoch, batch)
        if rate is not None:
            set_rate(self.model.optimizer, rate, self._correction)


class LearningRateWarmupCallback(RateCallback):
    """Raises the learning rate to ``initial_lr`` over the first epochs, batch by batch.

    Momentum that has the learning rate folded in is scaled along (Goyal et al., 2017, remark 2).

    Args:
        initial_lr: The scaled learning rate.
        warmup_epochs: Length of the warm-up; may be fractional.
        momentum_correction: Scale momentum along.
        steps_per_epoch: Batches per epoch, where ``fit`` does not know it.
        verbose: Say on rank 0 when the warm-up is done.
        base: Where it begins, the learning rate of one process; ``initial_lr / size`` if None.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: float = 5.0,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
        base: float | None = None,
    ) -> None:
        super().__init__(steps_per_epoch, momentum_correction)
        self._target, self._epochs, self._verbose = float(initial_lr), float(warmup_epochs), verbose
        self._base = base

    def on_train_begin(self, logs: Any = None) -> None:
        """Refuse to end below the optimizer's rate: given the one of one process, warm-up would undo the scaling."""
        super().on_train_begin(logs)
        rate = rate_of(self.model.optimizer)
        if self._epochs and rate > self._target * 1.0001:
            raise RecipeError(
                f"LearningRateWarmupCallback would end at initial_lr={self._target:g}, but the optimizer has the rate "
                f"{rate:g}; give the scaled one, scale_lr(lr), to both"
            )

    def rate(self, epoch: int, batch: int) -> float | None:
        """Return the rate of a batch while the warm-up lasts."""
        steps = self.steps()
        base = self._target / worlds.current().size if self._base is None else self._base
        rates = LearningRate(base, self._target, steps, self._epochs)
        step = epoch * steps + batch
        return rates.at(step) if step < rates.warmup_steps else None

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Say when the warm-up is done."""
        if self._verbose and epoch + 1 == math.ceil(self._epochs) and worlds.current().is_root:
            print(f"Epoch {epoch + 1}: finished gradual learning rate warmup to {self._target:g}.")


class LearningRateScheduleCallback(RateCallback):
    """Multiplies ``initial_lr`` by ``multiplier`` from ``start_epoch`` until before ``end_epoch``.

    Args:
        initial_lr: The scaled learning rate.
        multiplier: A number, or a function of the epoch.
        start_epoch: The first epoch, counted from 0.
        end_epoch: The epoch after the last one; None for no end.
        staircase: Call ``multiplier`` with whole epochs; otherwise with fractional ones, for every batch.
        momentum_correction: Scale momentum along, where the learning rate is folded into it.
        steps_per_epoch: Batches per epoch, where ``fit`` does not know it.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__(steps_per_epoch, momentum_correction)
        self.initial_lr, self._multiplier = float(initial_lr), multiplier
        self._start, self._end, self._staircase = start_epoch, end_epoch, staircase

    def rate(self, epoch: int, batch: int) -> float | None:
        """Return the rate of a batch in the epochs of this callback."""
        if epoch < self._start or (self._end is not None and epoch >= self._end):
            return None
        if not callable(self._multiplier):
            return self.initial_lr * self._multiplier
        return self.initial_lr * float(self._multiplier(epoch if self._staircase else epoch + batch / self.steps()))
