"""Which optimizers train a model, and how far it is built; the same for Keras 2 and 3."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hvdkit.keras_common.compat import innermost, keras, library


def is_built(model: Any) -> bool:
    """Say whether all variables of a model exist: it was called, or every part of one that is never called itself."""
    if getattr(model, "built", True):
        return True
    if type(model).build is not keras().Model.build:
        return False
    parts = list(getattr(model, "layers", ()))
    return bool(parts) and all(is_built(part) for part in parts)


def optimizers_of(model: Any) -> list[Any]:
    """Return the optimizers that train a model: that of ``compile``, and those for a ``train_step`` of its own."""
    kept = vars(model).values() if has_own_step(model) else [getattr(model, "optimizer", None)]
    return list({id(found): found for value in kept for found in _optimizers_in(value)}.values())


def _optimizers_in(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple, dict)):
        parts = value.values() if isinstance(value, dict) else value
        return [part for part in parts if is_optimizer(part)]
    return [value] if is_optimizer(value) else []


def is_optimizer(value: Any) -> bool:
    """Say whether a value is an optimizer of this Keras."""
    return isinstance(value, keras().optimizers.Optimizer)


def has_own_step(model: Any) -> bool:
    """Say whether a model's class has a ``train_step`` of its own."""
    base = keras().Model
    return isinstance(model, base) and type(model).train_step is not base.train_step


def settle(model: Any) -> None:
    """Give a model what the step just taken has made of it: on JAX, ``fit`` keeps that to itself."""
    if library() == "jax":
        model.jax_state_sync()


def passes_of(optimizer: Any) -> int:
    """Return the gradients that an optimizer takes the mean of in each update."""
    return getattr(innermost(optimizer), "gradient_accumulation_steps", None) or 1


def is_traced(values: Sequence[Any]) -> bool:
    """Say whether values belong to a function that JAX compiles, so that they have no numbers yet."""
    if library() != "jax":
        return False
    import jax

    return any(isinstance(value, jax.core.Tracer) for value in values)
