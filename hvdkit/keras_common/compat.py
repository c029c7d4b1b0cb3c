"""The one place that knows Keras 2 from Keras 3, and on which library Keras runs."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from numpy.typing import NDArray

from hvdkit.errors import ModelError

_LIBRARIES = {"tensorflow": "tf", "torch": "torch", "jax": "jax"}


def keras() -> Any:
    """Return the ``keras`` module of this environment: Keras 3, or the Keras 2 that belongs to TensorFlow."""
    return importlib.import_module("keras") if is_keras3() else importlib.import_module("tensorflow").keras


def keras_version() -> str:
    """Return the version of this environment's Keras."""
    return str(importlib.import_module("keras").__version__)


@functools.cache  # also asked inside a tf.function, where AutoGraph would look into the import
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


def indexed_dataset() -> Any:
    """Return the class whose batches ``fit`` takes by their number."""
    return keras().utils.PyDataset if is_keras3() else keras().utils.Sequence


def reads_optimizer_from_h5() -> bool:
    """Say whether ``load_model`` restores the optimizer's state from an ``.h5`` file."""
    return not is_keras3()


def inner_metrics(metric: Any) -> list[Any]:
    """Return the metrics that a metric is made of; empty for a single one."""
    return list(getattr(metric, "metrics", None) or []) if is_keras3() else []


def check_optimizer(optimizer: Any) -> None:
    """Check that an optimizer belongs to this Keras and can be distributed.

    Raises:
        ModelError: It belongs to another Keras, or is a legacy one.
    """
    kinds = [f"{kind.__module__}.{kind.__name__}" for kind in type(optimizer).__mro__]
    if any(".legacy." in name or "optimizer_v2" in name or "optimizers_legacy" in name for name in kinds):
        raise ModelError(f"{type(optimizer).__name__} is a legacy optimizer; use the one of keras.optimizers")
    if not isinstance(optimizer, keras().optimizers.Optimizer):
        raise ModelError(
            f"{type(optimizer).__name__} ({type(optimizer).__module__}) is no optimizer {_of_this_keras()}"
        )


def check_model(model: Any) -> None:
    """Check that a model belongs to this Keras.

    Raises:
        ModelError: It belongs to another one.
    """
    if hasattr(model, "compile") and not isinstance(model, keras().Model):
        raise ModelError(f"{type(model).__name__} ({type(model).__module__}) is no model {_of_this_keras()}")


def _of_this_keras() -> str:
    return f"of Keras {keras_version()}; take model and optimizer from the same Keras"


def scales_loss(optimizer: Any) -> bool:
    """Say whether an optimizer is Keras's wrapper that scales the loss, and skips updates whose gradients overflow."""
    return type(optimizer).__name__.startswith("LossScaleOptimizer")


def innermost(optimizer: Any) -> Any:
    """Return the optimizer that updates the weights: the wrapped one under loss scaling."""
    return innermost(optimizer.inner_optimizer) if scales_loss(optimizer) else optimizer


def applies_its_own_way(optimizer: Any) -> bool:
    """Say whether an optimizer's class replaces the way from gradients to update in which hooks can sit."""
    base = keras().optimizers.Optimizer
    names = ("apply", "_backend_apply_gradients") if is_keras3() else ("apply_gradients",)
    return any(getattr(type(optimizer), name) is not getattr(base, name) for name in names)


def loss_scale_optimizer() -> Any:
    """Return the class of :func:`scales_loss`."""
    return (keras().optimizers if is_keras3() else keras().mixed_precision).LossScaleOptimizer


def set_policy(policy: Any) -> None:
    """Make a dtype policy that was in force before the global one again."""
    # in Keras 2 one that nobody has set follows floatx, and must go on to do so
    unset = not is_keras3() and policy.name == keras().backend.floatx()
    keras().mixed_precision.set_global_policy(None if unset else policy)


def scale_loss(optimizer: Any, loss: Any) -> Any:
    """Return the loss as an optimizer wants it for the gradients: scaled, or as it is."""
    if is_keras3():
        return optimizer.scale_loss(loss)
    return optimizer.get_scaled_loss(loss) if scales_loss(optimizer) else loss


def unscale(optimizer: Any, gradients: list[Any]) -> list[Any]:
    """Return gradients of a scaled loss as an optimizer takes them: Keras 2 does not unscale them itself."""
    if is_keras3() or not scales_loss(optimizer):
        return gradients
    return list(optimizer.get_unscaled_gradients(gradients))


def scale_variables(optimizer: Any) -> list[Any]:
    """Return the variables of the loss scale that Keras 2 keeps apart from the optimizer's."""
    state: Any = getattr(optimizer, "_loss_scale", None) if scales_loss(optimizer) and not is_keras3() else None
    return [state.current_loss_scale, state.counter] if hasattr(state, "counter") else []


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


def before_apply(optimizer: Any, change: Callable[[list[Any], list[Any]], list[Any]]) -> None:
    """Let ``change(gradients, variables)`` replace what a program, or ``fit``, hands to an optimizer."""
    if not is_keras3():
        apply_gradients = optimizer.apply_gradients

        def changed_pairs(grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
            pairs = list(grads_and_vars)
            grads = change([gradient for gradient, _ in pairs], [variable for _, variable in pairs])
            changed = [(gradient, variable) for gradient, (_, variable) in zip(grads, pairs, strict=True)]
            return apply_gradients(changed, *args, **kwargs)

        optimizer.apply_gradients = changed_pairs
        return
    apply = optimizer.apply

    def changed(grads: Any, trainable_variables: Any = None) -> Any:
        known = innermost(optimizer)._trainable_variables if trainable_variables is None else trainable_variables
        return apply(change(list(grads), list(known)), trainable_variables)

    optimizer.apply = changed
    if scales_loss(optimizer):  # in the others it calls apply
        stateless_apply = optimizer.stateless_apply

        def stateless(optimizer_variables: Any, grads: Any, trainable_variables: Any) -> Any:
            return stateless_apply(
                optimizer_variables, change(list(grads), list(trainable_variables)), trainable_variables
            )

        optimizer.stateless_apply = stateless


def around_update(
    optimizer: Any, before: Callable[[Sequence[Any], Sequence[Any]], AbstractContextManager[Any]]
) -> None:
    """Let an optimizer take gradients inside ``before(gradients, variables)``, where it is told the variables."""
    if is_keras3():
        apply = optimizer.apply

        def applied(grads: Any, trainable_variables: Any = None) -> Any:
            if trainable_variables is None:
                return apply(grads)
            gradients, variables = list(grads), list(trainable_variables)
            _give_shapes(gradients, variables)
            with before(gradients, variables):
                return apply(gradients, variables)

        optimizer.apply = applied
        return
    apply_gradients = optimizer.apply_gradients

    def applied_pairs(grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        pairs = list(grads_and_vars)
        _give_shapes(*zip(*pairs, strict=True))
        with before([gradient for gradient, _ in pairs], [variable for _, variable in pairs]):
            return apply_gradients(pairs, *args, **kwargs)

    optimizer.apply_gradients = applied_pairs


def _give_shapes(gradients: Sequence[Any], variables: Sequence[Any]) -> None:
    """Let TensorFlow know the shapes of gradients: of layers on sequences, and of batches of a Sequence, it may not."""
    for gradient, variable in zip(gradients, variables, strict=True):
        if hasattr(gradient, "set_shape"):
            gradient.set_shape(variable.shape)


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


def counts_passes() -> bool:
    """Say whether optimizers that accumulate count passes themselves, and so need as many in every update."""
    return is_keras3()


def squares_rows_apart() -> bool:
    """Say whether optimizers square a row of a sparse gradient once for each time that it occurs."""
    return is_keras3() and library() == "tf"


def seed_variables(model: Any) -> list[Any]:
    """Return the states of the model's random generators, which stay each rank's own."""
    if not is_keras3():
        return []
    return [variable for variable in model.variables if variable.path.endswith("seed_generator_state")]


def global_generator(make: bool = False) -> Any:
    """Return the state of the generator that ``keras.random`` draws from without a seed; None before its first use.

    Args:
        make: Make it if there is none.
    """
    if not is_keras3():
        return None
    if make:
        # a first draw does; whoever asks for it sets where it stands
        keras().random.uniform(())
    from keras.src.backend.common import global_state

    return getattr(global_state.get_global_attribute("global_seed_generator"), "state", None)


def needs_build(optimizer: Any) -> bool:
    """Say whether ``build`` is to be called; Keras 2 calls an optimizer built that has no slots yet."""
    return not getattr(optimizer, "built", False) or not is_keras3()


def rate_variable(optimizer: Any) -> Any:
    """Return the variable of the learning rate, which Keras 2 keeps apart from the others; None under a schedule."""
    rate = getattr(innermost(optimizer), "_learning_rate", None)
    return rate if hasattr(rate, "assign") else None


def is_schedule(rate: Any) -> bool:
    """Say whether a learning rate is a schedule object of this Keras."""
    return isinstance(rate, keras().optimizers.schedules.LearningRateSchedule)


def schedule_of(optimizer: Any) -> Any:
    """Return the schedule object that is an optimizer's learning rate, or None."""
    rate = getattr(innermost(optimizer), "_learning_rate", None)
    return rate if is_schedule(rate) else None


def steps_per_execution(model: Any) -> int:
    """Return the batches that ``fit`` runs between two calls of the callbacks."""
    found: Any = model.steps_per_execution
    return 1 if found is None else int(found)


def loss_tracker(model: Any) -> Any:
    """Return the metric in which ``fit`` averages the loss; None before ``compile``."""
    if is_keras3():
        return getattr(model, "_loss_tracker", None)
    return getattr(getattr(model, "compiled_loss", None), "_total_loss_mean", None)


def mask_of(tensor: Any) -> Any:
    """Return the mask that layers have put on a tensor, or None."""
    if is_keras3():
        return importlib.import_module("keras.src.backend.common.masking").get_keras_mask(tensor)
    return getattr(tensor, "_keras_mask", None)


def set_mask(tensor: Any, mask: Any) -> None:
    """Put a mask on a tensor, as layers do."""
    if is_keras3():
        importlib.import_module("keras.src.backend.common.masking").set_keras_mask(tensor, mask)
    else:
        tensor._keras_mask = mask


def survives_empty_masks() -> bool:
    """Say whether the loss of a batch that is masked whole is 0 rather than NaN."""
    return is_keras3()


def name_of(variable: Any) -> str:
    """Return a variable's full name."""
    return str(getattr(variable, "path", None) or variable.name)


def steady_name(name: str, optimizer: Any) -> str:
    """Return the name of an optimizer's variable as ``build`` gives it; Keras 2's own steps put another in front."""
    return name if is_keras3() else name.replace(f"/{innermost(optimizer).name}/", "/", 1)


def as_tensor(array: Any) -> Any:
    """Return an array as a tensor of the library that Keras runs on."""
    return (
        keras().ops.convert_to_tensor(array)
        if is_keras3()
        else importlib.import_module("tensorflow").convert_to_tensor(array)
    )


def reshape(tensor: Any, shape: tuple[int, ...]) -> Any:
    """Return a tensor in another shape."""
    return (
        keras().ops.reshape(tensor, shape)
        if is_keras3()
        else importlib.import_module("tensorflow").reshape(tensor, shape)
    )


def to_numpy(variable: Any) -> NDArray[Any]:
    """Return a variable's value on the host."""
    value: NDArray[Any] = keras().ops.convert_to_numpy(variable) if is_keras3() else variable.numpy()
    return value
