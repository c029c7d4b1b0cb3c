"""The random generators of a process that trains with Keras or TensorFlow: one start, then a stream for each rank."""

from __future__ import annotations

from typing import Any

from hvdkit.job import random_streams
from hvdkit.job.world import World
from hvdkit.keras_common.compat import global_generator, library, seed_variables, to_numpy


def read_random_state(model: Any) -> dict[str, Any]:
    """Return where this process's generators stand, for a file: Python's, NumPy's and Keras 3's.

    Those of layers and ``keras.random`` are Keras 3's; TensorFlow does not show its own, nor Keras 2 those of layers.
    """
    drawn = global_generator()
    layers = [to_numpy(variable).tolist() for variable in seed_variables(model)]
    keras = None if drawn is None else to_numpy(drawn).tolist()
    state = {**random_streams.plain(), "layers": layers, "keras": keras}
    if library() == "torch":
        import torch

        state["torch"] = torch.get_rng_state().tolist()
    return state


def write_random_state(model: Any, state: dict[str, Any]) -> None:
    """Let this process's generators go on from where they stood."""
    random_streams.write_plain(state)
    for variable, place in zip(seed_variables(model), state["layers"], strict=False):
        variable.assign(place)
    if state["keras"] is not None:
        global_generator(make=True).assign(state["keras"])
    if "torch" in state and library() == "torch":
        import torch

        torch.set_rng_state(torch.tensor(state["torch"], dtype=torch.uint8))


def separate(world: World) -> None:
    """Give ranks whose generators stand at the same place streams of their own; called by all ranks.

    These are Python's, NumPy's, that of ``keras.random`` and that of the library that Keras runs on. Rank 0 keeps its
    streams, and so does a rank that was seeded apart by the user.
    """
    random_streams.separate(world)
    state = global_generator()
    mine = {"library": _seed(), "keras": None if state is None else to_numpy(state).tolist()}
    first: dict[str, Any] = world.engine.broadcast_object(mine)
    if world.rank == 0:
        return
    if mine["library"] is not None and mine["library"] == first["library"]:
        _set_seed(mine["library"] + world.rank)
    if state is not None and mine["keras"] == first["keras"]:
        value = to_numpy(state).copy()
        value[0] += world.rank
        state.assign(value)


def _seed() -> int | None:
    """Return what the library's global generator was seeded with; None for a random start, or where there is none."""
    if library() == "tf":
        from tensorflow.python.eager import context

        seed: int | None = context.global_seed()
        return seed
    if library() == "torch":
        import torch

        return torch.initial_seed()
    return None


def _set_seed(seed: int) -> None:
    if library() == "tf":
        import tensorflow as tf

        tf.random.set_seed(seed)
    else:
        import torch

        torch.manual_seed(seed)
