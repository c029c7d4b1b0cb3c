"""Step 5: gradients reduced over all ranks, inside the user's own optimizer."""

from __future__ import annotations

from typing import Any

from hvdkit.keras.fit_checks import watch_fit
from hvdkit.keras.own_steps import note_batches
from hvdkit.keras_common.gradients.distribution import distribute_optimizer
from hvdkit.keras_common.loop_drift import watch_optimizer


def distribute(
    optimizer: Any,
    model: Any = None,
    *,
    compression: str = "none",
    accumulate: int = 1,
    clip_norm: float | None = None,
) -> Any:
    """Step 5: average the gradients of this optimizer over all ranks, once per update, before it clips.

    The same object comes back, with its class, config and state. It works in ``fit``, in an overridden
    ``train_step`` and in a loop that calls ``apply_gradients()``.

    Args:
        optimizer: Any Keras optimizer of the Keras that the model belongs to.
        model: If given, its loss notes the number of samples of each batch, and ranks are weighted by it; ``compile``
            and ``fit`` then refuse what would make ranks differ, and rank 0 alone writes files and shows progress.
        compression: ``fp16`` sends half precision, divided before the sum, limited where it would overflow.
        accumulate: Batches per update; their mean is applied (Keras 3 only).
        clip_norm: Clip the reduced gradient to this global norm, min(1, c / norm).

    Raises:
        RecipeError: The optimizer is distributed already, or an argument has a wrong value.
        ModelError: The optimizer cannot be distributed.
        EngineError: The engine cannot sum what the compression sends.
    """
    distribute_optimizer(
        optimizer, model, compression=compression, accumulate=accumulate, clip_norm=clip_norm, weigh=None
    )
    watch_optimizer(optimizer)
    if hasattr(model, "fit"):
        watch_fit(model)
        note_batches(model)
    return optimizer
