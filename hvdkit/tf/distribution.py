"""Step 5: gradients reduced over all ranks, by the tape or by the optimizer."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hvdkit.errors import RecipeError
from hvdkit.keras_common.gradients.distribution import distribute_optimizer, mark_reduced
from hvdkit.keras_common.gradients.reduction import Reduction, shared_channel
from hvdkit.keras_common.loop_drift import after, look, watch_optimizer
from hvdkit.recipe.steps import Distribute
from hvdkit.tf.loop_weights import weighed


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def distribute(
    optimizer: Any,
    model: Any = None,
    *,
    compression: str = "none",
    accumulate: int = 1,
    clip_norm: float | None = None,
) -> Any:
    """Step 5: average gradients over all ranks, in a ``tf.GradientTape`` or in a Keras optimizer; take one of them.

    The same object comes back. A tape reduces in ``gradient()``; an optimizer in ``apply_gradients()``, once per
    update, before it clips.

    Args:
        optimizer: A Keras optimizer or a ``tf.GradientTape``.
        model: Not needed here.
        compression: ``fp16`` sends half precision, divided before the sum, limited where it would overflow.
        accumulate: Calls of ``apply_gradients()`` per update; their mean is applied (Keras 3 optimizers only).
        clip_norm: Clip the reduced gradient to this global norm, min(1, c / norm).

    Raises:
        RecipeError: It is distributed already, or an argument has a wrong value.
        ModelError: The optimizer cannot be distributed.
        EngineError: The engine cannot sum what the compression sends.
    """
    if isinstance(optimizer, tf.GradientTape):
        if accumulate != 1:
            raise RecipeError("a tape cannot accumulate; distribute the optimizer with accumulate instead")
        return _distribute_tape(optimizer, compression, clip_norm)
    distribute_optimizer(
        optimizer, model, compression=compression, accumulate=accumulate, clip_norm=clip_norm, weigh=weighed
    )
    watch_optimizer(optimizer)
    return optimizer


def DistributedGradientTape(  # noqa: N802  (the name that Horovod's users know)
    tape: tf.GradientTape, compression: str = "none"
) -> tf.GradientTape:
    """Return the tape, whose ``gradient()`` now averages over all ranks.

    Args:
        tape: Any ``tf.GradientTape``.
        compression: ``none`` or ``fp16``.

    Raises:
        RecipeError: The tape is distributed already.
    """
    return distribute(tape, compression=compression)


def _distribute_tape(tape: tf.GradientTape, compression: str, clip_norm: float | None) -> tf.GradientTape:
    Distribute(compression, 1, clip_norm)
    if hasattr(tape, "_hvdkit_reduction"):
        raise RecipeError("this tape is distributed already; call distribute once for each tape")
    reduction = Reduction(shared_channel(), compression, clip_norm)
    gradient = tape.gradient

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def reduced(target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        gradients = gradient(target, sources, *args, **kwargs)
        variables = tf.nest.flatten(sources)
        complete = reduction.complete(tf.nest.flatten(gradients), variables)
        with after(look(tf.GradientTape, variables, complete, distributed=True)):
            averaged = reduction(weighed(complete))
        mark_reduced(averaged)
        return tf.nest.pack_sequence_as(sources, averaged)

    tape._hvdkit_reduction = reduction
    tape.gradient = reduced
    return tape
