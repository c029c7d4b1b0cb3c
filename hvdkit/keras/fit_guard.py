"""Looks, while ``fit`` runs, whether all ranks train one model."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary, ref

import numpy as np

from hvdkit.job import world as worlds
from hvdkit.job.world import World
from hvdkit.keras.compiled import compiled_facts
from hvdkit.keras_common.compat import innermost, keras, name_of, steps_per_execution, to_numpy
from hvdkit.keras_common.gradients.distribution import follow_wrapping, reduction_of
from hvdkit.keras_common.loop_drift import leave_to_fit
from hvdkit.keras_common.state.variables import shared_weights
from hvdkit.keras_common.trained import has_own_step, optimizers_of, passes_of, settle
from hvdkit.training.agreement import check_alike
from hvdkit.training.drift import DriftGuard, sum_of_bits

_CHANGED = "something changed weights or gradients on some ranks only, such as a callback or a train_step of your own"
_Callback: Any = keras().callbacks.Callback


class GuardedCallback(_Callback):
    """The guard, by itself and in all of hvdkit's callbacks; of those given to one ``fit``, the first one looks."""

    def __init__(self) -> None:
        super().__init__()
        self._guard: _FitGuard | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Refuse on all ranks a model that nobody distributed."""
        for optimizer in optimizers_of(self.model):
            follow_wrapping(optimizer)
            for each in (optimizer, innermost(optimizer)):
                leave_to_fit(each)
        held = _first.get(self.model)
        first = None if held is None else held()
        if first is None or first.params is not self.params:  # of an earlier fit
            first = self
            _first[self.model] = ref(self)
        world = worlds.current()
        self._guard = _FitGuard(world, self.model) if first is self and world.size > 1 and world.guard else None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Compare, before the first step, what the model is compiled with, and the weights."""
        if self._guard is not None:
            self._guard.before_epoch()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Compare the weights after the first update and now and then."""
        if self._guard is not None:
            self._guard.after_batch(logs or {})


def is_distributed(optimizer: Any) -> bool:
    """Say whether an optimizer, or the one that it wraps, reduces its gradients."""
    return reduction_of(innermost(optimizer)) is not None


_first: WeakKeyDictionary[Any, ref[GuardedCallback]] = WeakKeyDictionary()


class _FitGuard:
    """Compares one model over ranks in the course of one ``fit``."""

    def __init__(self, world: World, model: Any) -> None:
        self._world, self._model = world, model
        optimizers = optimizers_of(model)
        distributed = [is_distributed(optimizer) for optimizer in optimizers]
        problem = None
        if optimizers and not any(distributed) and not has_own_step(model):
            problem = (
                f"the optimizer ({type(optimizers[0]).__name__}) is not distributed, so every process would train "
                "alone; compile the model with hvdkit.keras.distribute(optimizer, model)"
            )
        check_alike(world, "the model is compiled", {"distributed optimizers": sum(distributed)}, problem)
        forgotten = _CHANGED
        if not all(distributed):
            forgotten = (
                "call hvdkit.keras.distribute(optimizer, model) for every optimizer that trains it, or " + _CHANGED
            )
        self._drift = DriftGuard(world, forgotten)
        self._passes = max([passes_of(optimizer) for optimizer in optimizers], default=1)
        self._per_call = steps_per_execution(model)
        self._batches = 0
        self._began = self._known = False

    def before_epoch(self) -> None:
        """Compare what the first step starts from."""
        if self._began:
            return
        self._began = True
        facts = compiled_facts(self._model)
        check_alike(self._world, "the model is compiled", facts, remedy="; compile it alike on every rank")
        self._known = self._look([])

    def after_batch(self, logs: dict[str, Any]) -> None:
        """Count a batch; look if it was the first update's last, or enough updates have gone by."""
        if not self._known:  # built by this batch, and broadcast after it
            self._known = True
            return
        before = self._batches // self._passes
        self._batches += self._per_call
        due = False
        for _ in range(self._batches // self._passes - before):
            self._drift.updates += 1
            due |= self._drift.is_due
        if due:
            shown = [value for name, value in logs.items() if "loss" in name][:1]
            self._look([sum_of_bits(np.array(float(np.mean(value)))) for value in shown] if before == 0 else [])

    def _look(self, local: list[int]) -> bool:
        """Compare the weights; return whether there are any."""
        settle(self._model)
        weights = shared_weights(self._model)
        if weights:
            digests = [sum_of_bits(to_numpy(weight)) for weight in weights]
            self._drift.look([name_of(weight) for weight in weights], digests, local)
        return bool(weights)
