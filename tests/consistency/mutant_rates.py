"""More faults of step 4: the learning rate of an update."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from mutant_recipes import mutant
from mutant_tools import everywhere, rank

import hvdkit
from hvdkit.recipe import plan


def halved_each_epoch(epoch: float) -> float:
    return 0.5 ** int(epoch)


def falling(epoch: float) -> float:
    return 1 / (1 + epoch)


def _rates(change: Callable[[Any, Any, int], float]) -> None:
    at = plan.LearningRate.at
    plan.LearningRate.at = lambda self, step: change(self, at, step)  # type: ignore[method-assign]


@mutant("scale_lr")
def square_root_instead_of_linear() -> None:
    """The rule is not the recipe's."""
    scale_factor = plan.scale_factor
    everywhere(plan, "scale_factor", lambda rule, ratio: scale_factor("sqrt", ratio))


@mutant("scale_lr")
def rate_divided() -> None:
    """The rate of one process, divided by the number of processes."""
    scale_factor = plan.scale_factor
    everywhere(plan, "scale_factor", lambda rule, ratio: 1.0 / scale_factor(rule, ratio))


@mutant("scale_lr", ("torch", "tf"), distribute=hvdkit.Distribute(accumulate=2))
def passes_not_counted_in_the_rate() -> None:
    """The global batch has two passes, the rate one."""
    scale_factor = plan.scale_factor
    everywhere(plan, "scale_factor", lambda rule, ratio: scale_factor(rule, ratio // 2))


@mutant("scale_lr")
def warmup_one_update_late() -> None:
    """The first update has the rate before the warm-up's first step."""
    _rates(lambda self, at, step: at(self, step - 1) if 0 < step < self.warmup_steps else at(self, step))


@mutant("scale_lr")
def warmup_from_zero() -> None:
    """The rate rises from 0, not from that of one process."""
    _rates(lambda self, at, step: at(replace(self, base=0.0), step))


@mutant("scale_lr")
def warmup_twice_as_long() -> None:
    """Epochs of the warm-up are counted twice."""
    _rates(lambda self, at, step: at(replace(self, warmup_epochs=2 * self.warmup_epochs), step))


@mutant("scale_lr")
def warmup_overshoots() -> None:
    """The last update of the warm-up goes beyond the target."""
    _rates(lambda self, at, step: at(self, step) * (1.2 if step == self.warmup_steps - 1 else 1.0))


@mutant("scale_lr", schedule=halved_each_epoch)
def schedule_ignored() -> None:
    """The rate stays where the warm-up has brought it."""
    _rates(lambda self, at, step: at(replace(self, schedule=None), step))


@mutant("scale_lr", schedule=falling)
def schedule_one_update_late() -> None:
    """The schedule is asked for the update before."""
    _rates(lambda self, at, step: at(self, step - 1 if step > self.warmup_steps else step))


@mutant("scale_lr", schedule=halved_each_epoch)
def schedule_of_one_processs_rate() -> None:
    """The schedule multiplies the rate before it was scaled."""
    _rates(lambda self, at, step: at(self if step < self.warmup_steps else replace(self, target=self.base), step))


@mutant("scale_lr")
def rate_of_the_last_rank_differs() -> None:
    """One rank has another rate, by a thousandth."""
    _rates(lambda self, at, step: at(self, step) * (1.001 if rank() else 1.0))


@mutant("scale_lr")
def rate_frozen() -> None:
    """The rate of the first update stays."""
    _rates(lambda self, at, step: at(self, 0))
