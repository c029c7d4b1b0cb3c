"""Step 7 for Keras models: ``.npz`` files that rank 0 alone writes and reads, and plain NumPy opens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hvdkit.job import world as worlds
from hvdkit.job.arrays import average_arrays
from hvdkit.job.files import Saved, read_arrays, write_arrays
from hvdkit.keras_common.state.variables import broadcast, build, model_variables, optimizer_variables, read, write

SUFFIX = "npz"


def save(path: str, model: Any, optimizer: Any = None, **state: Any) -> None:
    """Step 7: write a checkpoint on rank 0; called by all ranks, which first average BatchNorm's statistics.

    Args:
        path: Where; a temporary file is renamed to it when it is complete.
        model: All its variables are kept.
        optimizer: All its variables are kept.
        **state: Numbers, strings, lists and dicts.

    Raises:
        CheckpointError: The file cannot be written; on every rank.
    """
    average_statistics(model)
    variables = model_variables(model) | (optimizer_variables(optimizer) if optimizer is not None else {})
    worlds.current().root_only(lambda: write_arrays(path, read(variables), state))


def restore(path: str, model: Any, optimizer: Any = None) -> dict[str, Any]:
    """Step 7: read a checkpoint on rank 0 and give it to all ranks; called by all ranks.

    Returns:
        What was passed to :func:`save` as ``state``, on every rank.

    Raises:
        CheckpointError: The file is missing or damaged, or does not fit the model; on every rank.
    """
    return take_saved(lambda: read_saved(path), model, optimizer)


def take_saved(read: Callable[[], Saved], model: Any, optimizer: Any = None) -> dict[str, Any]:
    """Give all ranks a checkpoint that ``read`` returns on rank 0; return its state; called by all ranks.

    Raises:
        CheckpointError: It cannot be read, or does not fit the model; on every rank.
    """
    world = worlds.current()
    if optimizer is not None:
        build(model, optimizer)
    variables = model_variables(model) | (optimizer_variables(optimizer) if optimizer is not None else {})

    def load() -> dict[str, Any]:
        saved = read()
        arrays = saved.content
        if optimizer is None:
            arrays = {name: value for name, value in arrays.items() if name.startswith("model/")}
        write(variables, arrays, f"checkpoint {saved.path}")
        return saved.state

    state: dict[str, Any] = world.root_only(load)
    broadcast(world, model, optimizer, root=0)
    return state


def read_saved(path: str) -> Saved:
    """Read a checkpoint, on this rank alone.

    Raises:
        CheckpointError: The file is missing or damaged.
    """
    arrays, state = read_arrays(path)
    return Saved(path, arrays, state)


def average_statistics(model: Any) -> None:
    """Average what training changes without gradients, BatchNorm's running statistics, over all ranks."""
    trained = {id(variable) for variable in model.trainable_variables}
    statistics = {
        name: variable
        for name, variable in model_variables(model).items()
        if id(variable) not in trained and "float" in str(variable.dtype)
    }
    for name, value in average_arrays(worlds.current(), read(statistics)).items():
        statistics[name].assign(value)
