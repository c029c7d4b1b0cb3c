"""The one place that knows Keras 2 from Keras 3, and on which library Keras runs."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from hvdkit.errors import ModelError

_LIBRARIES = {"tensorflow": "tf", "torch": "torch", "jax": "jax"}


def keras() -> Any:
    """Return the ``keras`` module of this environment: Keras 3, or the Keras 2 that belongs to TensorFlow."""
    return importlib.import_module("keras") if is_keras3() else importlib.import_module("tensorflow").keras


def keras_version() -> str:
    """Return the version of this environment's Keras."""
    return str(importlib.import_module("keras").__version__)


def is_keras3() -> bool:
    """Say whether this environment's Keras is Keras 3."""
    return keras_version().startswith("3")


def library() -> str:
    """Return the tensor library that Keras runs on: ``tf``, ``torch`` or ``jax``.

    Raises:
        ModelError: It is another one.
    """
    name = keras().backend.backend() if is_keras3() else "tensorflow"
    if name not in _LIBRARIES:
        raise ModelError(f"Keras runs on {name!r}; hvdkit serves tensorflow, torch and jax (variable KERAS_BACKEND)")
    return _LIBRARIES[name]


def check_optimizer(optimizer: Any) -> None:
    """Check that an optimizer belongs to this Keras and can be distributed.

    Raises:
        ModelError: It belongs to another Keras, is a legacy one, or scales the loss.
    """
    kinds = {f"{kind.__module__}.{kind.__name__}" for kind in type(optimizer).__mro__}
    if any(".legacy." in name or "optimizer_v2" in name or "optimizers_legacy" in name for name in kinds):
        raise ModelError(f"{type(optimizer).__name__} is a legacy optimizer; use the one of keras.optimizers")
    check_loss_scaling(optimizer)
    if not isinstance(optimizer, keras().optimizers.Optimizer):
        found = next((name for name in kinds if name.endswith("Optimizer")), type(optimizer).__module__)
        raise ModelError(
            f"{type(optimizer).__name__} ({found}) is no optimizer of Keras {keras_version()}; "
            "take model and optimizer from the same Keras"
        )


def check_loss_scaling(optimizer: Any) -> None:
    """Refuse what Keras puts around an optimizer under ``mixed_float16``: each rank would skip steps by itself.

    Raises:
        ModelError: The optimizer scales the loss.
    """
    if type(optimizer).__name__.startswith("LossScaleOptimizer"):
        raise ModelError("LossScaleOptimizer cannot be distributed yet; train in float32 or bfloat16")


def before_update(optimizer: Any, change: Callable[[list[Any], list[Any]], list[Any]]) -> None:
    """Let ``change(gradients, variables)`` replace the gradients just before the update rule, after all clipping."""
    if is_keras3():
        update = optimizer._backend_update_step

        def update_step(grads: Any, trainable_variables: Any, learning_rate: Any) -> Any:
            variables = list(trainable_variables)
            return update(change(list(grads), variables), variables, learning_rate)

        optimizer._backend_update_step = update_step
        return
    internal = optimizer._internal_apply_gradients

    def apply(grads_and_vars: Any) -> Any:
        grads, variables = zip(*grads_and_vars, strict=True)
        return internal(list(zip(change(list(grads), list(variables)), variables, strict=True)))

    optimizer._internal_apply_gradients = apply


def before_apply(optimizer: Any, check: Callable[[list[Any]], None]) -> None:
    """Call ``check(gradients)`` on what a program hands to an optimizer."""
    if is_keras3():
        apply = optimizer.apply

        def checked(grads: Any, *args: Any, **kwargs: Any) -> Any:
            grads = list(grads)
            check(grads)
            return apply(grads, *args, **kwargs)

        optimizer.apply = checked
        return
    apply_gradients = optimizer.apply_gradients

    def checked_pairs(grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        pairs = list(grads_and_vars)
        check([gradient for gradient, _ in pairs])
        return apply_gradients(pairs, *args, **kwargs)

    optimizer.apply_gradients = checked_pairs


def before_clipping(optimizer: Any, change: Callable[[list[Any]], list[Any]]) -> None:
    """Let ``change(gradients)`` replace the gradients once per update, after accumulation and before clipping."""
    clip = optimizer._clip_gradients
    optimizer._clip_gradients = lambda grads: clip(change(list(grads)))


def accumulate_in(optimizer: Any, passes: int) -> None:
    """Let a Keras optimizer apply the mean of ``passes`` gradients.

    Raises:
        ModelError: Keras 2 cannot, or the optimizer is built or has another number.
    """
    if not is_keras3():
        raise ModelError("Keras 2 optimizers cannot accumulate gradients; use accumulate=1, or Keras 3")
    if optimizer.gradient_accumulation_steps not in (None, passes):
        raise ModelError(
            f"the optimizer has gradient_accumulation_steps={optimizer.gradient_accumulation_steps} "
            f"but accumulate={passes} is asked for; give one of them"
        )
    if optimizer.built and optimizer.gradient_accumulation_steps is None:
        raise ModelError("the optimizer is built already; distribute it before its first use to accumulate gradients")
    optimizer.gradient_accumulation_steps = passes


def seed_variables(model: Any) -> list[Any]:
    """Return the states of the model's random generators, which stay each rank's own."""
    if not is_keras3():
        return []
    return [variable for variable in model.variables if variable.path.endswith("seed_generator_state")]


def rate_variable(optimizer: Any) -> Any:
    """Return the variable of the learning rate, which Keras 2 keeps apart from the others; None under a schedule."""
    rate = getattr(optimizer, "_learning_rate", None)
    return rate if hasattr(rate, "assign") else None


def loss_tracker(model: Any) -> Any:
    """Return the metric in which ``fit`` averages the loss; None before ``compile``."""
    if is_keras3():
        return getattr(model, "_loss_tracker", None)
    return getattr(getattr(model, "compiled_loss", None), "_total_loss_mean", None)


def name_of(variable: Any) -> str:
    """Return a variable's full name."""
    return str(getattr(variable, "path", None) or variable.name)
