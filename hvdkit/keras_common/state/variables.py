"""Variables of models and optimizers as named NumPy arrays."""

from __future__ import annotations

import re
from typing import Any

from hvdkit.errors import CheckpointError, ModelError
from hvdkit.job.arrays import Arrays, broadcast_arrays
from hvdkit.job.world import World
from hvdkit.keras_common import random_state
from hvdkit.keras_common.compat import (
    name_of,
    needs_build,
    rate_variable,
    scale_variables,
    seed_variables,
    steady_name,
    to_numpy,
)
from hvdkit.keras_common.trained import has_own_step, is_built, is_optimizer, optimizers_of


def model_variables(model: Any) -> dict[str, Any]:
    """Return all variables of a model but the states of its random generators, in order, with unique names.

    A plain list of variables does as a model too, and as an optimizer.
    """
    if isinstance(model, (list, tuple)):
        return _named("model", list(model))
    seeds = {id(variable) for variable in seed_variables(model)}
    return _named("model", [variable for variable in model.variables if id(variable) not in seeds])


def shared_weights(model: Any) -> list[Any]:
    """Return the weights that are the same on all ranks throughout: trained ones, and those of frozen layers.

    Statistics, counters and states of its own kind may be each rank's own for a while. A plain list of variables does
    as a model too.
    """
    if isinstance(model, (list, tuple)):
        return [variable for variable in model if variable.trainable or _is_weight(variable)]
    return [*model.trainable_variables, *filter(_is_weight, model.non_trainable_variables)]


def _is_weight(variable: Any) -> bool:
    return name_of(variable).split(":")[0].endswith(_TRAINED)


_TRAINED = ("kernel", "bias", "gamma", "beta", "embeddings")


def optimizer_variables(optimizer: Any) -> dict[str, Any]:
    """Return all variables of an optimizer, or of a list of optimizers: slots, iterations and learning rate."""
    if isinstance(optimizer, (list, tuple)):
        if not any(map(is_optimizer, optimizer)):
            return _named("optimizer", list(optimizer))
        return {
            f"optimizer {place}/{name}": variable
            for place, each in enumerate(optimizer)
            for name, variable in optimizer_variables(each).items()
        }
    rate = rate_variable(optimizer)
    variables = [*optimizer.variables, *scale_variables(optimizer)]
    apart = rate is not None and all(rate is not variable for variable in variables)
    named = _named("optimizer", [*variables, rate] if apart else variables)
    return {steady_name(name, optimizer): variable for name, variable in named.items()}


def shared_variables(model: Any, optimizer: Any) -> dict[str, Any]:
    """Return what all ranks share, the optimizer's first, which are created without a step if need be.

    Of other optimizers that the model keeps, for a ``train_step`` of its own, it is what they have so far. Names are
    the same on ranks that have built other layers before, which Keras counts.

    Raises:
        ModelError: The model is not built.
    """
    if not is_built(model):
        raise ModelError(
            "the model is not built, so it has no variables yet; call it, or each of its parts, on a batch first"
        )
    variables: dict[str, Any] = {}
    if optimizer is not None:
        build(model, optimizer)
        variables |= optimizer_variables(optimizer)
    given = optimizer if isinstance(optimizer, (list, tuple)) else [optimizer]
    kept = optimizers_of(model) if has_own_step(model) else []
    others = [each for each in kept if all(each is not one for one in given)]
    variables |= {f"other {name}": variable for name, variable in optimizer_variables(others).items()}
    return {without_counts(name): variable for name, variable in (variables | model_variables(model)).items()}


def without_counts(name: str) -> str:
    """Return a name without the numbers by which Keras tells layers of one class apart: ``dense_2/kernel``."""
    return _COUNTS.sub("", name)


_COUNTS = re.compile(r"_\d+(?=[_/:]|$)")


def _named(prefix: str, variables: list[Any]) -> dict[str, Any]:
    return {f"{prefix}/{number}/{name_of(variable)}": variable for number, variable in enumerate(variables)}


def read(variables: dict[str, Any]) -> Arrays:
    """Return the values of named variables."""
    return {name: to_numpy(variable) for name, variable in variables.items()}


def write(variables: dict[str, Any], arrays: Arrays, source: str) -> None:
    """Assign arrays to variables in their order; the names may differ, since Keras counts them up.

    Raises:
        CheckpointError: Their number or a shape differs.
    """
    if len(variables) != len(arrays):
        raise CheckpointError(f"{source} holds {len(arrays)} arrays, this model and optimizer have {len(variables)}")
    for (name, variable), (saved, value) in zip(variables.items(), arrays.items(), strict=True):
        if tuple(variable.shape) != value.shape:
            raise CheckpointError(f"{source}: {saved} has shape {value.shape}, but {name} has {tuple(variable.shape)}")
        variable.assign(value)


def build(model: Any, optimizer: Any) -> None:
    """Create the optimizer's variables, without a step."""
    if isinstance(optimizer, (list, tuple)):
        return
    if needs_build(optimizer):
        optimizer.build(model.trainable_variables)


def broadcast(world: World, model: Any, optimizer: Any, root: int) -> None:
    """Give every rank the variables of ``root``, optimizer first and weights last, and its own random state.

    Raises:
        ModelError: The variables differ between ranks; the message names the first.
        CollectiveError: There is no such rank.
    """
    variables = shared_variables(model, optimizer)
    received = broadcast_arrays(world, read(variables), root)
    if world.size == 1:
        return
    for name, variable in variables.items():
        if world.rank != root:
            variable.assign(received[name])
    separate_random_state(world, model)


def separate_random_state(world: World, model: Any) -> None:
    """Give ranks random numbers of their own, dropout masks too, not copies of rank 0's; called by all ranks."""
    random_state.separate(world)
    if world.rank == 0:
        return
    for variable in [] if isinstance(model, (list, tuple)) else seed_variables(model):
        state = to_numpy(variable)
        state[0] += world.rank
        variable.assign(state)
