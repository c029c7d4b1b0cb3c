"""Faults of steps 6, 7 and 8."""

from __future__ import annotations

import importlib
from typing import Any

from mutant_recipes import backends, mutant, nets
from mutant_tools import everywhere

import hvdkit
from hvdkit.job import metrics
from hvdkit.training import trainer as training


@mutant("broadcast")
def skip_broadcast() -> None:
    """Every rank starts from its own weights."""
    for backend in backends():
        backend.broadcast = lambda model, optimizer=None, root=0: None


@mutant("broadcast", model=nets(True))
def forget_buffers() -> None:
    """BatchNorm's statistics stay each rank's own at the start."""
    if backends()[0].__name__ == "hvdkit.torch":
        module = importlib.import_module("hvdkit.torch.synchronising")
        module.named_tensors = lambda model: model.named_parameters()
        return
    variables = importlib.import_module("hvdkit.keras_common.state.variables")
    everything = variables.model_variables

    def trained(model: Any) -> Any:
        kept = {id(variable) for variable in model.trainable_variables}
        return {name: value for name, value in everything(model).items() if id(value) in kept}

    variables.model_variables = trained


@mutant("broadcast", broadcast=hvdkit.Broadcast(when="after_first_step"))
def broadcast_after_the_first_step() -> None:
    """Horovod's habit: the first update is made from different weights."""


@mutant("broadcast", ("torch",))
def optimizer_stepped_by_the_broadcast() -> None:
    """Optimizer state is made by a step with zero gradients, as stock Horovod does."""
    for backend in backends():
        broadcast = backend.broadcast

        def stepping(model: Any, optimizer: Any = None, root: int = 0, send: Any = broadcast) -> None:
            for parameter in model.parameters():
                parameter.grad = parameter.detach() * 0
            optimizer.step()
            send(model, optimizer, root)

        backend.broadcast = stepping


# step 7


@mutant("checkpoint")
def optimizer_not_restored() -> None:
    """A resumed run starts with an empty optimizer."""
    for backend in backends():
        take = backend.take_saved
        backend.take_saved = lambda read, model, optimizer=None, take=take: take(read, model)


@mutant("checkpoint")
def position_not_restored() -> None:
    """A resumed run starts its learning rate and order anew."""
    training.Trainer._take_position = lambda self, state: None  # type: ignore[method-assign]


@mutant("average")
def metrics_not_averaged() -> None:
    """Every rank reports its own metrics."""
    metrics.Sums.over_ranks = lambda self, world: self  # type: ignore[method-assign]
    if backends()[0].__name__ != "hvdkit.torch":
        importlib.import_module("hvdkit.keras.metric_sums").join_states = lambda world, local, rule: local


@mutant("average", ("torch", "tf"))
def mean_of_means() -> None:
    """Ranks with few samples count as much as the others."""

    def over_ranks(self: Any, world: Any) -> Any:
        joined = metrics.Sums()
        for totals in world.engine.allgather_object(self._totals):
            for name, (total, count) in totals.items():
                joined.add(name, total / count, 1)
        return joined

    metrics.Sums.over_ranks = over_ranks  # type: ignore[method-assign]


@mutant("average", ("keras",))
def sums_averaged_not_added() -> None:
    """Sums are averaged and counts are not: metrics N times too small."""
    module = importlib.import_module("hvdkit.keras.metric_sums")
    join = module.join_states

    def halved(world: Any, local: list[Any], rule: str) -> list[Any]:
        joined = join(world, local, rule)
        return [value / 2 if number % 2 == 0 else value for number, value in enumerate(joined)]

    module.join_states = halved


@mutant("average", model=nets(True))
def statistics_not_averaged() -> None:
    """BatchNorm's statistics are each rank's own when they are evaluated and saved."""
    if backends()[0].__name__ == "hvdkit.torch":
        for name in ("hvdkit.torch.trainer", "hvdkit.torch.checkpointing"):
            importlib.import_module(name).synchronise_statistics = lambda model: None
        return
    files = importlib.import_module("hvdkit.keras_common.state.files")
    everywhere(files, "average_statistics", lambda model, also=(): None)
