"""Step 7 for Keras models: ``.npz`` files that rank 0 alone writes and reads, and plain NumPy opens."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from hvdkit.errors import ModelError
from hvdkit.job import world as worlds
from hvdkit.job.arrays import average_arrays
from hvdkit.job.collective import on_all_ranks
from hvdkit.job.files import Saved, read_arrays, write_arrays
from hvdkit.keras_common.loop_drift import check_used
from hvdkit.keras_common.optimizers import rate_of, set_rate
from hvdkit.keras_common.state.variables import broadcast, build, model_variables, optimizer_variables, read, write
from hvdkit.training.rate_factor import take_rate_factor, with_rate_factor

SUFFIX = "npz"


@on_all_ranks
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
    variables, state = _content(model, optimizer, state)
    worlds.current().root_only(lambda: write_arrays(path, read(variables), state))


@on_all_ranks
def snapshot(path: str, model: Any, optimizer: Any = None, **state: Any) -> Callable[[], None]:
    """Return what writes the file of :func:`save` later, from a copy of what there is now; called by all ranks.

    Only rank 0 has a copy; elsewhere nothing is done.

    Raises:
        CheckpointError: When it is called: the file cannot be written.
    """
    variables, state = _content(model, optimizer, state)
    if not worlds.current().is_root:
        return lambda: None
    arrays = {name: np.array(value) for name, value in read(variables).items()}
    return lambda: write_arrays(path, arrays, state)


def _content(model: Any, optimizer: Any, state: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the variables that a file holds, and its state."""
    synchronise_statistics(model)
    variables = model_variables(model) | (optimizer_variables(optimizer) if optimizer is not None else {})
    return variables, with_rate_factor(worlds.current(), state)


@on_all_ranks
def restore(path: str, model: Any, optimizer: Any = None) -> dict[str, Any]:
    """Step 7: read a checkpoint on rank 0 and give it to all ranks; called by all ranks.

    A learning rate that :func:`scale_lr` had scaled for another number of processes is scaled for this one.

    Returns:
        What was passed to :func:`save` as ``state``, on every rank.

    Raises:
        CheckpointError: The file is missing or damaged, or does not fit the model; on every rank.
    """
    state = take_saved(lambda: read_saved(path), model, optimizer)
    change = take_rate_factor(worlds.current(), state)
    if optimizer is not None and not isinstance(optimizer, (list, tuple)) and change != 1.0:
        set_rate(optimizer, rate_of(optimizer) * change)
    return state


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


@on_all_ranks
def synchronise_statistics(model: Any, also: Iterable[str] = ()) -> None:
    """Average BatchNorm's running statistics over all ranks, before a model is evaluated, used or saved by hand.

    Every variable called ``moving_mean`` or ``moving_variance`` is such a statistic; other variables that training
    changes without gradients stay each rank's own.

    Args:
        model: Called by all ranks with the same model.
        also: Paths of other floating-point variables to average.

    Raises:
        ModelError: The weights differ between ranks, there is no such variable, or it is not of floating point.
    """
    check_used(worlds.current(), model)
    average_statistics(model, also)


def average_statistics(model: Any, also: Iterable[str] = ()) -> None:
    """Do what :func:`synchronise_statistics` does, without a look at the weights."""
    variables, named = model_variables(model), set(also)
    floating = {name: value for name, value in variables.items() if "float" in str(value.dtype)}
    missing = named - {_path(name) for name in floating}
    if missing:
        raise ModelError(f"the model has no floating-point variable {min(missing)!r} to average; see model.variables")
    statistics = {
        name: variable
        for name, variable in floating.items()
        if _path(name) in named or _path(name).split("/")[-1] in _STATISTICS
    }
    for name, value in average_arrays(worlds.current(), read(statistics)).items():
        statistics[name].assign(value)


def _path(name: str) -> str:
    return name.split("/", 2)[2].split(":")[0]


_STATISTICS = ("moving_mean", "moving_variance")
