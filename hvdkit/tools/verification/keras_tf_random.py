"""Random numbers of TensorFlow's own, such as ``tf.random.normal``'s, from a state that can be read and set.

TensorFlow hides where they stand. While a verified model computes, they come from the stateless functions that belong
to them instead, and from a variable that counts.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import tensorflow as tf

_STATE = "hvdkit_draws"


def draw_from_state(model: Any) -> None:
    """Let a model draw from a variable of its own wherever it is called; once."""
    if hasattr(model, _STATE):
        return
    with tf.init_scope():
        state = tf.Variable([0, 0], dtype=tf.int64, trainable=False, name="draws")
    object.__setattr__(model, _STATE, state)
    call, steady = model.call, Steady(state)

    def drawing(*args: Any, **kwargs: Any) -> Any:
        with steady:
            return call(*args, **kwargs)

    object.__setattr__(model, "call", drawing)


def state_of(model: Any) -> list[Any]:
    """Return the variable; it starts where TensorFlow's own generator stands when it is first asked for."""
    state = getattr(model, _STATE, None)
    if state is None:
        return []
    if not int(state[0]):
        state.assign([tf.random.uniform([], 1, 2**62, tf.int64), 0])
    return [state]


def generators_of(model: Any) -> list[Any]:
    """Return the states of the generators that layers keep, as those of Keras 2 that augment do."""
    held = [value for layer in model._flatten_layers() for value in vars(layer).values()]
    inside = [part for value in held for part in (value, *getattr(value, "__dict__", {}).values())]
    found = {id(part): part for part in inside if isinstance(part, tf.random.Generator)}
    return [generator.state for generator in found.values()]


class Steady:
    """Replaces TensorFlow's random operations inside ``with``."""

    def __init__(self, state: Any) -> None:
        self._state, self._depth = state, 0
        self._module = importlib.import_module("tensorflow.python.ops.gen_random_ops")
        self._own = {name: getattr(self._module, name) for name in self._replacements()}

    def __enter__(self) -> None:
        self._depth += 1
        for name, replacement in self._replacements().items():
            setattr(self._module, name, replacement)

    def __exit__(self, *error: object) -> None:
        self._depth -= 1
        if not self._depth:
            for name, own in self._own.items():
                setattr(self._module, name, own)

    def _replacements(self) -> dict[str, Callable[..., Any]]:
        return {
            "random_standard_normal": self._normal,
            "random_uniform": self._uniform,
            "random_uniform_int": self._integers,
            "truncated_normal": self._truncated,
            "random_shuffle": self._shuffled,
            "multinomial": self._categories,
        }

    def _next(self) -> Any:
        return self._state.assign_add([0, 1], read_value=True) + 0

    def _normal(self, shape: Any, dtype: Any, seed: int = 0, seed2: int = 0, name: Any = None) -> Any:
        return tf.random.stateless_normal(shape, self._next(), dtype=dtype)

    def _uniform(self, shape: Any, dtype: Any, seed: int = 0, seed2: int = 0, name: Any = None) -> Any:
        return tf.random.stateless_uniform(shape, self._next(), dtype=dtype)

    def _integers(self, shape: Any, minval: Any, maxval: Any, seed: int = 0, seed2: int = 0, name: Any = None) -> Any:
        dtype = tf.convert_to_tensor(minval).dtype
        return tf.random.stateless_uniform(shape, self._next(), minval, maxval, dtype)

    def _truncated(self, shape: Any, dtype: Any, seed: int = 0, seed2: int = 0, name: Any = None) -> Any:
        return tf.random.stateless_truncated_normal(shape, self._next(), dtype=dtype)

    def _shuffled(self, value: Any, seed: int = 0, seed2: int = 0, name: Any = None) -> Any:
        drawn = tf.random.stateless_uniform([tf.shape(value)[0]], self._next())
        return tf.gather(value, tf.argsort(drawn))

    def _categories(
        self,
        logits: Any,
        num_samples: Any,
        seed: int = 0,
        seed2: int = 0,
        output_dtype: Any = tf.int64,
        name: Any = None,
    ) -> Any:
        return tf.random.stateless_categorical(logits, num_samples, self._next(), output_dtype)
