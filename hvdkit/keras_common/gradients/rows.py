"""Whether rows of sparse gradients may be added up before an optimizer sees them."""

from __future__ import annotations

from typing import Any

from hvdkit.keras_common.compat import before_update, keras, squares_rows_apart
from hvdkit.keras_common.gradients.arithmetic import gradient_math

_MARK = "_hvdkit_joins_rows"


def join_rows_in(optimizer: Any) -> None:
    """Let an optimizer add up the rows of a sparse gradient before it squares them."""
    mark_joined(optimizer)
    if squares_rows_apart():
        before_update(optimizer, lambda gradients, _: gradient_math().join_rows(gradients))


def mark_joined(optimizer: Any) -> None:
    """Note that an optimizer's rule takes the sum of rows of the same index."""
    object.__setattr__(optimizer, _MARK, True)


def sums_rows(optimizer: Any) -> bool:
    """Say whether an optimizer's update is the same when rows of the same index are added up before.

    Keras 3 squares each occurrence of a row by itself in all but SGD, whose rule squares nothing.
    """
    return not squares_rows_apart() or isinstance(optimizer, keras().optimizers.SGD) or hasattr(optimizer, _MARK)
