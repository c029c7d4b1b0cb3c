"""Looks, in a loop of one's own, at the weights that an optimizer or a tape trains: all ranks must hold the same."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from weakref import ref

import numpy as np

from hvdkit.errors import HvdkitError
from hvdkit.job import world as worlds
from hvdkit.job.world import World
from hvdkit.keras_common.compat import around_update, innermost, library, name_of, to_numpy
from hvdkit.keras_common.gradients.arithmetic import gradient_math
from hvdkit.keras_common.gradients.distribution import reduction_of
from hvdkit.keras_common.gradients.reduction import shared_channel
from hvdkit.keras_common.state.variables import shared_weights
from hvdkit.keras_common.trained import is_optimizer, is_traced, passes_of
from hvdkit.process import failures
from hvdkit.training import drift

_WATCHED = "_hvdkit_watched"
_CHANGED = (
    "something changed weights or gradients on some ranks only, such as gradients that are changed by hand after they "
    "were averaged"
)
_NOT_DISTRIBUTED = "call distribute(optimizer), or distribute(tape), so that gradients are averaged"


class _ByVariable(dict[int, Any]):
    """Notes about variables, which have no hash, as long as they live."""

    def note(self, variable: Any, value: Any) -> Any:
        key = id(variable)
        self[key] = (ref(variable, lambda _: self.pop(key, None)), value)
        return value

    def of(self, variable: Any) -> Any:
        held, value = self.get(id(variable), (None, None))
        return value if held is not None and held() is variable else None


_broadcast = _ByVariable()
_watches = _ByVariable()


class _Watch:
    """Counts the updates of some variables, and looks at them.

    The first look comes after the first update, behind which Horovod's users broadcast.
    """

    def __init__(self, world: World, owner: Any, variables: Sequence[Any], passes: int) -> None:
        self._world, self.owner, self._passes = world, ref(owner), passes
        self._variables = [ref(variable) for variable in variables]
        self.distributed = False
        self._guard: drift.DriftGuard | None = None
        self._calls = 0
        self._counted: Any = None  # the same in graphs

    def before_update(self, gradients: Sequence[Any]) -> None:
        """Look, if it is time, at what the updates so far have left; called by all ranks, outside a graph."""
        done = self._calls
        self._calls = done + 1
        if done and (done == self._passes or done % (drift.EVERY * self._passes) == 0):
            self._look(np.array([float(_size(gradients)), done // self._passes], np.float64))

    def before_update_in_graph(self, gradients: Sequence[Any]) -> Any:
        """Do the same in a graph; return what the update must wait for."""
        tf: Any = _tensorflow()
        if self._counted is None:
            self._counted = gradient_math().untrained_variable(self._calls, tf.int64)
        done = self._counted.assign_add(1) - 1
        due = tf.equal(done % (drift.EVERY * self._passes), 0) & (done > 0) | tf.equal(done, self._passes)
        updates = tf.cast(done // self._passes, tf.float64)
        channel: Any = shared_channel()

        def look() -> Any:
            return channel.host_call(self._look, tf.stack([_size(gradients), updates]))

        return tf.cond(due, look, lambda: tf.stack([updates, updates]))

    def _look(self, facts: Any) -> Any:
        variables = [variable for held in self._variables if (variable := held()) is not None]
        if len(variables) < len(self._variables):
            return facts
        guard = self._guard = self._guard or drift.DriftGuard(self._world, self._forgotten(variables))
        guard.updates = int(facts[1])
        local = [drift.sum_of_bits(facts[:1])] if guard.updates == 1 else []
        digests = [drift.sum_of_bits(to_numpy(variable)) for variable in variables]
        try:
            guard.look([name_of(variable) for variable in variables], digests, local)
        except HvdkitError as error:
            failures.note_cause(error)
            raise
        return facts

    def _forgotten(self, variables: Sequence[Any]) -> str:
        if not self.distributed:
            return _NOT_DISTRIBUTED
        return _CHANGED if any(map(_broadcast.of, variables)) else drift.NOT_BROADCAST


def note_broadcast(variables: Sequence[Any], optimizer: Any) -> None:
    """Expect equal weights from now on, also where nobody distributes the optimizer."""
    for variable in variables:
        _broadcast.note(variable, True)
    if is_optimizer(optimizer):
        watch_optimizer(optimizer)


def check_used(world: World, model: Any) -> None:
    """Refuse a model whose weights differ between ranks where one rank's are taken for those of all.

    Called by all ranks, outside a graph.
    """
    if world.size == 1 or not world.guard:
        return
    weights = shared_weights(model)
    digests = [drift.sum_of_bits(to_numpy(weight)) for weight in weights]
    known = any(map(_broadcast.of, weights))
    advice = drift.CHANGED_LATER if known else drift.NOT_BROADCAST
    drift.check_used(world, [name_of(weight) for weight in weights], digests, advice)


def watch_optimizer(optimizer: Any) -> None:
    """Let an optimizer look at its weights before it changes them."""
    if hasattr(optimizer, _WATCHED):
        return

    def before(gradients: Sequence[Any], variables: Sequence[Any]) -> AbstractContextManager[Any]:
        if not getattr(optimizer, _WATCHED):
            return nullcontext()
        distributed = reduction_of(innermost(optimizer)) is not None
        return after(look(optimizer, variables, gradients, distributed, passes_of(optimizer)))

    around_update(optimizer, before)
    object.__setattr__(optimizer, _WATCHED, True)


def leave_to_fit(optimizer: Any) -> None:
    """Look no more at what an optimizer trains: ``fit`` does."""
    if hasattr(optimizer, _WATCHED):
        object.__setattr__(optimizer, _WATCHED, False)


def look(
    owner: Any, variables: Sequence[Any], gradients: Sequence[Any], distributed: bool, passes: int = 1
) -> list[Any]:
    """Look at variables before an update, now and then; return what the update must wait for in a graph.

    Args:
        owner: The optimizer, or a word for all tapes; of several that come with the same variables, the first one
            looks.
        variables: Those that the update changes.
        gradients: Their gradients, on this rank.
        distributed: Whether they are, or will be, averaged.
        passes: Calls per update.
    """
    world = worlds.current()
    if world.size == 1 or not world.guard or not variables or not all(hasattr(each, "assign") for each in variables):
        return []
    watch = _watches.of(variables[0])
    if watch is None or watch.owner() is None:
        watch = _watches.note(variables[0], _Watch(world, owner, variables, passes))
    watch.distributed |= distributed
    if watch.owner() is not owner:
        return []
    if library() == "tf" and _tensorflow().inside_function():
        return [watch.before_update_in_graph(gradients)]
    if not is_traced(gradients):
        watch.before_update(gradients)
    return []


def after(waited: list[Any]) -> AbstractContextManager[Any]:
    """Let what follows in a graph wait for what :func:`look` returned."""
    context: AbstractContextManager[Any] = _tensorflow().control_dependencies(waited) if waited else nullcontext()
    return context


def _tensorflow() -> Any:
    return importlib.import_module("tensorflow")


def _size(gradients: Sequence[Any]) -> Any:
    """Return a number that tells the gradients of other samples apart."""
    math = gradient_math()
    last = next((gradient for gradient in reversed(gradients) if gradient is not None), None)
    if last is None:
        return 0.0
    return math.sum_of_sizes(last.values if math.is_sparse(last) else last)
