"""What is noted of Keras optimizers and layers, in a loop of one's own and in ``fit``."""

from __future__ import annotations

import functools
import hashlib
import inspect
import random
from collections.abc import Callable
from typing import Any

import numpy as np

from hvdkit.keras_common.compat import innermost, is_keras3, keras, name_of, to_numpy
from hvdkit.keras_common.gradients.reduction import Reduction
from hvdkit.keras_common.state import variables
from hvdkit.tools.verification.rounding import UNITS
from hvdkit.tools.verification.scripts.job import DOUBLED, NUDGED, SINGLE
from hvdkit.tools.verification.scripts.recording import Enough, Recorder
from hvdkit.tools.verification.storage import Arrays, State

# layers that draw random numbers in training, and what switches them off
_RANDOM_LAYERS = {
    "rate": ("Dropout", "SpatialDropout1D", "SpatialDropout2D", "SpatialDropout3D"),
    "stddev": ("GaussianNoise",),
}
_RANDOM_LAYERS["rate"] += ("GaussianDropout", "AlphaDropout")


class KerasWatch:
    """Watches Keras in the process of the script, where everything runs eagerly."""

    def __init__(self, recorder: Recorder, seed: int) -> None:
        self._recorder = recorder
        self._optimizers: list[Any] = []
        self._trained: list[list[Any]] = []
        self._steps: list[int] = []
        self._broadcast: set[int] = set()
        self._draws = 0
        self._nudges = np.random.default_rng(seed)
        keras().utils.set_random_seed(seed)

    def install(self) -> None:
        """Watch all optimizers, reductions, broadcasts and layers."""
        self._watch_apply()
        self._watch_reductions()
        self._watch_broadcast()
        self._watch_layers()

    def new_batch(self) -> str:
        """Return the random state when a batch comes; move the weights in the last place where that is asked for."""
        if self._recorder.run == NUDGED:
            for variable in [variable for trained in self._trained for variable in trained]:
                value = to_numpy(variable)
                if value.dtype.kind == "f":
                    units = self._nudges.integers(-UNITS, UNITS + 1, value.shape)
                    variable.assign((value * (1 + units * np.finfo(value.dtype).eps)).astype(value.dtype))
        return self._random()

    def distributed(self, optimizer: Any) -> None:
        """Note that an optimizer is distributed."""
        self._recorder.log.facts.setdefault("distributed", []).append(self._number(innermost(optimizer), []))

    def _random(self) -> str:
        found = hashlib.sha256(f"{self._draws}".encode())
        found.update(repr(random.getstate()).encode())
        found.update(repr(np.random.get_state(legacy=False)).encode())
        return found.hexdigest()

    def _watch_apply(self) -> None:
        base = keras().optimizers.Optimizer
        name = "apply" if is_keras3() else "apply_gradients"
        real = getattr(base, name)

        @functools.wraps(real)
        def noted(optimizer: Any, grads: Any, *args: Any, **kwargs: Any) -> Any:
            grads = list(grads)
            if is_keras3():
                given = args[0] if args else kwargs.get("trainable_variables")
                trained = list(optimizer._trainable_variables if given is None else given)
            else:
                trained = [variable for _, variable in grads]
            number = self._before(optimizer, trained)
            if not self._recorder.on_ranks and getattr(optimizer, "gradient_accumulation_steps", None) in (None, 1):
                self._note_alone(grads if is_keras3() else [gradient for gradient, _ in grads])
            result = real(optimizer, grads, *args, **kwargs)
            self._after(optimizer, number)
            return result

        setattr(base, name, noted)

    def _note_alone(self, gradients: Any) -> None:
        local = {f"gradient {place}": _dense(each) for place, each in enumerate(gradients) if each is not None}
        self._recorder.reduced(1.0, "average", "", {"local": local, "before": {}, "after": local})

    def _number(self, optimizer: Any, trained: list[Any]) -> int:
        for number, other in enumerate(self._optimizers):
            if other is optimizer:
                self._trained[number] = self._trained[number] or trained
                return number
        self._optimizers.append(optimizer)
        self._trained.append(trained)
        self._steps.append(0)
        return len(self._optimizers) - 1

    def _before(self, optimizer: Any, trained: list[Any]) -> int:
        number = self._number(optimizer, trained)
        facts = self._recorder.log.facts
        self._recorder.drawn(self._random())
        if self._steps[number] == 0:
            self._recorder.start(number, type(optimizer).__name__, [_rate(optimizer)], self._state(number))
        # what the first batch builds is broadcast after it, and so it is in loops that were Horovod's
        if self._recorder.on_ranks and not {id(variable) for variable in trained} <= self._broadcast:
            facts.setdefault("late", []).append(number)
            if self._steps[number] == 1:
                facts.setdefault("not broadcast", []).append(number)
        return number

    def _after(self, optimizer: Any, number: int) -> None:
        if self._recorder.keeps:
            self._recorder.update(number, type(optimizer).__name__, [_rate(optimizer)], self._state(number))
        self._steps[number] += 1
        if self._recorder.run in (SINGLE, DOUBLED):
            raise Enough
        self._recorder.check_end(self._steps[number])

    def _state(self, number: int) -> State:
        trained, optimizer = self._trained[number], self._optimizers[number]
        slots = optimizer.variables
        held: Any = slots() if callable(slots) else slots
        return {"parameters": _arrays(trained), "slots": _arrays(held)}

    def _watch_reductions(self) -> None:
        real = Reduction.average

        def average(reduction: Any, gradients: list[Any]) -> list[Any]:
            count = float(to_numpy_number(reduction.usual_count if reduction.count is None else reduction.count))
            local = {
                f"gradient {place}": _dense(each) * count for place, each in enumerate(gradients) if each is not None
            }
            result: list[Any] = real(reduction, gradients)
            if not self._recorder.on_ranks:
                return result  # the optimizer is given the same
            after = {f"gradient {place}": _dense(each) for place, each in enumerate(result) if each is not None}
            wire = (
                "fp16" if reduction._compression == "fp16" else str(next(iter(after.values())).dtype) if after else ""
            )
            self._recorder.reduced(count, "average", wire, {"local": local, "before": {}, "after": after})
            return result

        setattr(Reduction, "average", average)  # noqa: B010 - for the type check

    def _watch_broadcast(self) -> None:
        real = variables.broadcast

        def broadcast(world: Any, model: Any, optimizer: Any, root: int) -> None:
            held = list(model) if isinstance(model, (list, tuple)) else list(model.variables)
            self._broadcast |= {id(variable) for variable in held} | {id(_inner(variable)) for variable in held}
            if self._recorder.on_ranks and self._recorder.rank != root:
                for variable in variables.model_variables(model).values():
                    value = to_numpy(variable)
                    if value.dtype.kind == "f":
                        variable.assign(value + np.asarray(0.1 * self._recorder.rank, value.dtype))
            real(world, model, optimizer, root)

        variables.broadcast = broadcast

    def _watch_layers(self) -> None:
        layers = keras().layers
        for setting, names in _RANDOM_LAYERS.items():
            for name in names:
                if hasattr(layers, name):
                    self._before_call(getattr(layers, name), self._quieten(setting))
        self._before_call(layers.BatchNormalization, lambda _: self._recorder.log.facts.update(statistics=True))
        if is_keras3():
            draw = keras().random.SeedGenerator.next

            def drawn(generator: Any, *args: Any, **kwargs: Any) -> Any:
                self._draws += 1
                return draw(generator, *args, **kwargs)

            keras().random.SeedGenerator.next = drawn

    def count_draws(self, home: Any, names: tuple[str, ...]) -> None:
        """Count the calls of a library's random functions."""
        for name in names:
            self._count(home, name)

    def _count(self, home: Any, name: str) -> None:
        real = getattr(home, name)

        @functools.wraps(real)
        def drawn(*args: Any, **kwargs: Any) -> Any:
            self._draws += 1
            return real(*args, **kwargs)

        setattr(home, name, drawn)

    def _quieten(self, setting: str) -> Callable[[Any], None]:
        def quieten(layer: Any) -> None:
            if getattr(layer, setting, 0):
                setattr(layer, setting, 0)
                self._recorder.log.facts["dropout"] = True

        return quieten

    def _before_call(self, kind: Any, action: Callable[[Any], None]) -> None:
        real = kind.call

        @functools.wraps(real)
        def call(layer: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            training = kwargs.get("training", args[0] if args else None)
            if training is True or (training is not None and not isinstance(training, bool) and bool(training)):
                action(layer)
            return real(layer, inputs, *args, **kwargs)

        call.__signature__ = inspect.signature(real)  # type: ignore[attr-defined]
        kind.call = call


def to_numpy_number(value: Any) -> float:
    """Return a number, or a tensor of one, as a float."""
    return float(np.asarray(value))


def _inner(variable: Any) -> Any:
    """Return the library's own variable of one of Keras 3, which tapes and optimizers may be given as well."""
    return getattr(variable, "value", variable) if not callable(getattr(variable, "value", None)) else variable


def _rate(optimizer: Any) -> float:
    rate = getattr(optimizer, "learning_rate", 0.0)
    return to_numpy_number(rate if isinstance(rate, float) else to_numpy(rate))


def _arrays(held: Any) -> Arrays:
    found: Arrays = {}
    for place, variable in enumerate(held):
        found[f"{place} {name_of(variable)}"] = np.array(to_numpy(variable))
    return found


def _dense(gradient: Any) -> Any:
    if hasattr(gradient, "indices"):
        import tensorflow as tf

        gradient = tf.convert_to_tensor(gradient)
    value: Any = gradient.detach().cpu() if hasattr(gradient, "detach") else gradient
    return np.array(value)
