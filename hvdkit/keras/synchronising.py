"""Step 6: one state on all ranks."""

from __future__ import annotations

from typing import Any

from hvdkit.job import world as worlds
from hvdkit.keras_common.state import variables


def broadcast(model: Any, optimizer: Any = None, root: int = 0) -> None:
    """Step 6: give every rank the variables of ``root``, BatchNorm's statistics included; weights go last.

    The optimizer's variables are created without a step. Random state stays each rank's own.

    Args:
        model: A built Keras model.
        optimizer: Its optimizer.
        root: The rank whose state counts.

    Raises:
        ModelError: The variables differ between ranks; the message names the first.
    """
    variables.broadcast(worlds.current(), model, optimizer, root)
