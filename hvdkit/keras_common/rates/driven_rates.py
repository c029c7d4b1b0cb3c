"""Learning rates that change during ``fit`` on JAX, where Keras keeps the optimizer's variables out of reach."""

from __future__ import annotations

from typing import Any

import numpy as np
from keras import ops
from keras.src.backend.common.stateless_scope import in_stateless_scope
from numpy.typing import NDArray

from hvdkit.keras_common.compat import before_update, innermost

_DRIVEN = "_hvdkit_rates"


class DrivenRate:
    """Lets an optimizer read its rate from a table by its own count of updates; class and config stay as they are.

    Attributes:
        table: The rate of each update, float32; NaN stands for the optimizer's own, as does the end of the table.
    """

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = innermost(optimizer)
        self._own = self._optimizer._get_current_learning_rate
        self.table: NDArray[np.float32] = np.zeros(0, np.float32)
        self.momentum_correction = True
        object.__setattr__(self._optimizer, "_get_current_learning_rate", self._current)
        if type(self._optimizer).__name__ == "SGD" and self._optimizer.momentum:
            before_update(self._optimizer, self._correct_momentum)

    def drive(self, first: int, rates: list[float | None]) -> None:
        """Set the rates of the updates from ``first`` on; None leaves an update as it is."""
        if len(self.table) < first + len(rates):
            self.table = np.pad(self.table, (0, first + len(rates) - len(self.table)), constant_values=np.nan)
        for step, rate in enumerate(rates, first):
            if rate is not None:
                self.table[step] = rate

    def _current(self) -> Any:
        """Return the rate of the update under way; between updates that of the last one, as a variable would hold."""
        # counts updates, also where one takes several passes
        step = self._optimizer.iterations
        return self._at(step if in_stateless_scope() else ops.maximum(step - 1, 0))

    def _at(self, step: Any) -> Any:
        if not self.table.size:
            return self._own()
        own = ops.convert_to_tensor(self._own())
        rate = ops.take(ops.convert_to_tensor(self.table), ops.clip(step, 0, len(self.table) - 1))
        driven = ops.logical_and(step < len(self.table), ops.logical_not(ops.isnan(rate)))
        return ops.where(driven, rate, own)

    def _correct_momentum(self, gradients: list[Any], _variables: list[Any]) -> list[Any]:
        """Scale momentum that has the old rate folded in (Goyal et al., 2017, remark 2)."""
        if self.momentum_correction and self.table.size:
            step = self._optimizer.iterations
            old, new = self._at(ops.maximum(step - 1, 0)), self._at(step)
            ratio = ops.where(old == 0, 1.0, new / ops.where(old == 0, 1.0, old))
            for velocity in self._optimizer.momentums:
                velocity.assign(velocity * ratio)
        return gradients


def driven_rate(optimizer: Any) -> DrivenRate:
    """Return what drives an optimizer's rate; there is one for each optimizer."""
    inner = innermost(optimizer)
    found: DrivenRate | None = getattr(inner, _DRIVEN, None)
    if found is None:
        found = DrivenRate(inner)
        object.__setattr__(inner, _DRIVEN, found)
    return found
