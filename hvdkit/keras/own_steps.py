"""How many samples stand behind a batch that a ``train_step`` of the user's own takes."""

from __future__ import annotations

import functools
from typing import Any

from hvdkit.keras_common.compat import innermost
from hvdkit.keras_common.gradients.arithmetic import gradient_math
from hvdkit.keras_common.gradients.distribution import reduction_of
from hvdkit.keras_common.trained import has_own_step, optimizers_of, passes_of
from hvdkit.recipe.trees import leaves

_NOTED = "_hvdkit_notes_batches"


def note_batches(model: Any) -> None:
    """Let every optimizer of a model with a ``train_step`` of its own weight ranks by the samples of the batch.

    What the model's own ``compute_loss`` says of the same batch goes before.
    """
    if not has_own_step(model) or _NOTED in vars(model):
        return
    train_step = model.train_step

    @functools.wraps(train_step)
    def noting(*args: Any, **kwargs: Any) -> Any:
        # passes that are summed up are reduced together, with one count for all
        found = [reduction_of(innermost(each)) for each in optimizers_of(model) if passes_of(each) == 1]
        reductions = [reduction for reduction in found if reduction is not None]
        for reduction in reductions:
            reduction.usual_count = _samples((*args, *kwargs.values())[-1])
        try:
            return train_step(*args, **kwargs)
        finally:
            for reduction in reductions:
                reduction.usual_count = 1.0

    object.__setattr__(model, "train_step", noting)
    object.__setattr__(model, _NOTED, True)


def _samples(data: Any) -> Any:
    """Return the number of samples in ``x``, ``(x, y)`` or ``(x, y, weights)``; 0 where they are repeated ones."""
    math = gradient_math()
    count = math.scalar(math.length(next(leaves(data))))
    if isinstance(data, tuple) and len(data) == 3 and data[2] is not None:
        return count * math.any_real(next(leaves(data[2])))
    return count
