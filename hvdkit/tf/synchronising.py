"""Step 6: one state on all ranks, before the first step or, as Horovod does, after it."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hvdkit.job import world as worlds
from hvdkit.job.arrays import broadcast_arrays
from hvdkit.job.world import World
from hvdkit.keras_common.compat import seed_variables
from hvdkit.keras_common.loop_drift import note_broadcast
from hvdkit.keras_common.state import variables


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
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
    if tf.inside_function():
        _in_graph(worlds.current(), model, optimizer, root)
    else:
        variables.broadcast(worlds.current(), model, optimizer, root)
    if worlds.current().size > 1:
        note_broadcast(list(variables.model_variables(model).values()), optimizer)


def _in_graph(world: World, model: Any, optimizer: Any, root: int) -> None:
    """Broadcast in a graph, where inputs and assignments keep the place of this call in the program."""
    shared = variables.shared_variables(model, optimizer)
    current = [tf.convert_to_tensor(variable) for variable in shared.values()]

    def exchange(*arrays: Any) -> list[Any]:
        return list(broadcast_arrays(world, dict(zip(shared, arrays, strict=True)), root).values())

    received = tf.numpy_function(exchange, current, [value.dtype for value in current])
    for variable, before, value in zip(shared.values(), current, received, strict=True):
        value.set_shape(before.shape)
        variable.assign(value)
    if world.rank and not isinstance(model, (list, tuple)):
        for state in seed_variables(model):
            state.assign(state + tf.one_hot(0, state.shape[0], on_value=world.rank, dtype=state.dtype))
