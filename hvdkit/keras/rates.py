"""Step 4: warm-up as a Keras callback."""

from __future__ import annotations

from hvdkit.keras.callbacks import LearningRateWarmupCallback


def warmup(
    target: float, *, base: float, steps_per_epoch: int | None = None, epochs: float = 5.0
) -> LearningRateWarmupCallback:
    """Return a callback that raises the rate linearly from ``base`` to ``target`` over the first epochs.

    Args:
        target: The scaled learning rate.
        base: The learning rate of one process.
        steps_per_epoch: Batches per epoch, where ``fit`` does not know it.
        epochs: Length of the warm-up.
    """
    return LearningRateWarmupCallback(target, epochs, steps_per_epoch=steps_per_epoch, base=base)
