"""Step 6: one state on all ranks, before the first step or, as Horovod does, after it."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hvdkit import world as worlds
from hvdkit.keras_objects import variables


def broadcast(model: Any, optimizer: Any = None, root: int = 0) -> None:
    """Step 6: give every rank the variables of ``root``, optimizer first and weights last.

    The optimizer's variables are created without a step. Called before the first step, it makes that step the same on
    all ranks; it also works after it, and inside a ``tf.function``. Random state stays each rank's own.

    Args:
        model: A Keras model, or a list of ``tf.Variable``.
        optimizer: A Keras optimizer, or a list of ``tf.Variable``.
        root: The rank whose state counts.

    Raises:
        ModelError: The variables differ between ranks; the message names the first.
    """
    world = worlds.current()
    if tf.inside_function():
        tf.py_function(lambda: _now(model, optimizer, root), [], [])
        return
    variables.broadcast(world, model, optimizer, root)


def _now(model: Any, optimizer: Any, root: int) -> None:
    variables.broadcast(worlds.current(), model, optimizer, root)
