"""Step 4: warm-up as a Keras callback."""

from __future__ import annotations

from hvdkit.keras.callbacks import LearningRateWarmupCallback


def warmup(target: float, epochs: float = 5.0, steps_per_epoch: int | None = None) -> LearningRateWarmupCallback:
    """Return a callback that raises the rate linearly from ``target / size`` to ``target`` over the first epochs.

    Args:
        target: The scaled learning rate.
        epochs: Length of the warm-up.
        steps_per_epoch: Batches per epoch, where ``fit`` does not know it.
    """
    return LearningRateWarmupCallback(target, warmup_epochs=epochs, steps_per_epoch=steps_per_epoch)
