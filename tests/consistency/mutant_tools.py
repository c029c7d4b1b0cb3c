"""What mutants take hold of, in every framework: gradients, weights and slots of a run, functions wherever imported."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

from mutant_recipes import backends

from hvdkit.job import world
from hvdkit.training import trainer as training

Factor = Callable[[int, int], Any]
"""What the gradient of a place is multiplied by on a rank."""


def in_torch() -> bool:
    return bool(backends()[0].__name__ == "hvdkit.torch")


def rank() -> int:
    return int(world.current().rank)


def everywhere(module: Any, name: str, value: Any) -> Any:
    """Replace a function in every module that has imported it, and in those that will; return the old one."""
    old = getattr(module, name)
    setattr(module, name, value)
    backends()
    for other in list(sys.modules.values()):
        if getattr(other, "__name__", "").startswith("hvdkit") and getattr(other, name, None) is old:
            setattr(other, name, value)
    return old


def times(before: Factor | None = None, after: Factor | None = None) -> None:
    """Multiply gradients before or after they are averaged."""
    if in_torch():
        _times_in_buckets(before, after)
        return
    reduction = importlib.import_module("hvdkit.keras_common.gradients.reduction").Reduction
    average = reduction._average

    def changed(self: Any, gradients: list[Any]) -> list[Any]:
        def scaled(held: list[Any], factor: Factor | None) -> list[Any]:
            return held if factor is None else [g * factor(rank(), place) for place, g in enumerate(held)]

        return scaled(average(self, scaled(gradients, before)), after)

    reduction._average = changed


def _times_in_buckets(before: Factor | None, after: Factor | None) -> None:
    from hvdkit.torch.gradients.buckets import Bucket

    fill, unpack = Bucket.fill, Bucket.unpack

    def scale(bucket: Any, factor: Factor | None) -> None:
        if factor is not None:
            # buckets hold parameters from the last to the first
            for place, view in enumerate(reversed(bucket.views)):
                view.mul_(factor(rank(), place))

    def filled(self: Any, passes: int) -> None:
        fill(self, passes)
        scale(self, before)

    def unpacked(self: Any) -> None:
        scale(self, after)
        unpack(self)

    Bucket.fill, Bucket.unpack = filled, unpacked  # type: ignore[method-assign]


def at_each_update(change: Callable[[Any], None]) -> None:
    """Do something to a trainer when an update is done, before anyone looks."""
    end_step = training.Trainer._end_step

    def changed(self: Any) -> None:
        change(self)
        end_step(self)

    training.Trainer._end_step = changed  # type: ignore[method-assign]


def weights(trainer: Any) -> list[Any]:
    return list(trainer.model.parameters() if in_torch() else trainer.model.trainable_variables)


def velocities(trainer: Any) -> list[Any]:
    """Return the momentum of every weight."""
    if in_torch():
        return [state["momentum_buffer"] for state in trainer.optimizer.state.values() if "momentum_buffer" in state]
    return list(trainer.optimizer.momentums)


def multiply(variable: Any, factor: float) -> None:
    if in_torch():
        variable.data.mul_(factor)
    else:
        variable.assign(variable * factor)
