"""Step 6: one state on all ranks."""

from __future__ import annotations

from typing import Any

from hvdkit.job import world as worlds
from hvdkit.keras_common.loop_drift import note_broadcast
from hvdkit.keras_common.state import variables


def broadcast(model: Any, optimizer: Any = None, root: int = 0) -> None:
    """Step 6: give every rank the variables of ``root``, BatchNorm's statistics included; weights go last.

    The optimizer's variables are created without a step. Random state stays each rank's own.

    Args:
        model: A built Keras model, or one of which all parts are built, with all optimizers that it keeps for a
            ``train_step`` of its own.
        optimizer: Its optimizer, or a list of optimizers.
        root: The rank whose state counts.

    Raises:
        ModelError: The variables differ between ranks; the message names the first.
    """
    variables.broadcast(worlds.current(), model, optimizer, root)
    if worlds.current().size > 1:
        note_broadcast(list(variables.model_variables(model).values()), optimizer)
