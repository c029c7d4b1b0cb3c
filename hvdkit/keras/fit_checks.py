"""What is looked at, on all ranks, before ``fit`` takes its first step."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from hvdkit.errors import RecipeError
from hvdkit.job import world as worlds
from hvdkit.keras.callbacks import BroadcastGlobalVariablesCallback, MetricAverageCallback
from hvdkit.keras.fit_batches import ArrayBatches, is_sharded
from hvdkit.keras.fit_data import share_out
from hvdkit.keras.fit_guard import GuardedCallback
from hvdkit.keras.rate_callbacks import RateCallback
from hvdkit.keras.rate_checks import undone_scaling
from hvdkit.keras_common.compat import keras, to_numpy
from hvdkit.keras_common.state.variables import shared_weights
from hvdkit.keras_common.trained import is_built, optimizers_of, passes_of
from hvdkit.training.agreement import check_alike
from hvdkit.training.drift import sum_of_bits

_UNWATCHED = "_hvdkit_fit"
_FITS = "_hvdkit_fits"
_DECIDERS = ("EarlyStopping", "ReduceLROnPlateau")
_WRITERS = ("CSVLogger", "ModelCheckpoint", "RemoteMonitor", "TensorBoard")
_REFUSED = {
    "BackupAndRestore": "would go on from another epoch on each rank; use hvdkit.keras.save and restore",
    "TerminateOnNaN": "would stop one rank and leave the others waiting; look at the averaged loss in a callback "
    "behind MetricAverageCallback",
}


def watch_fit(model: Any) -> None:
    """Let ``model.fit`` check its arguments on all ranks, and let rank 0 alone write files and show progress.

    Raises:
        RecipeError: When ``fit`` is called: callbacks are in the wrong order or would make ranks differ, or ``fit`` is
            called differently on a rank; on every rank.
    """
    if _UNWATCHED in vars(model):
        return  # by another of its optimizers
    fit = model.fit
    signature = inspect.signature(fit)

    @functools.wraps(fit)
    def checked(*args: Any, **kwargs: Any) -> Any:
        world, bound = worlds.current(), signature.bind(*args, **kwargs)
        given = bound.arguments
        if world.size > 1:
            callbacks = _listed(given.get("callbacks"))
            _agree(model, callbacks, given)
            if world.guard:
                averaged = any(isinstance(entry, MetricAverageCallback) for entry in callbacks)
                share_out(world, given, averaged=averaged, seed=_count_fits(model), accumulate=_passes(model))
            if not world.is_root:
                callbacks = [entry for entry in callbacks if not isinstance(entry, _of_kinds(_WRITERS))]
                if "verbose" in signature.parameters:
                    given["verbose"] = 0
            given["callbacks"] = [GuardedCallback(), *callbacks]
        _take_class_weight(given)
        if isinstance(given.get("x"), ArrayBatches) and "shuffle" in signature.parameters:
            given["shuffle"] = False  # they come in their own order, which Keras would change on each rank
        return fit(*bound.args, **bound.kwargs)

    object.__setattr__(model, "fit", checked)
    object.__setattr__(model, _UNWATCHED, fit)


def _take_class_weight(given: dict[str, Any]) -> None:
    """Let batches that carry weights multiply them by those of the classes: Keras takes one kind alone.

    Raises:
        RecipeError: The weights are the user's own, or those of a data set whose labels are not at hand.
    """
    batches: Any = given.get("x")
    if not is_sharded(batches):
        return
    batches.class_weight = {}
    if given.get("class_weight") is not None and batches.weighted:
        if not batches.takes_class_weight:
            raise RecipeError(
                "class_weight is given, but these batches carry weights of their own; multiply the samples' weights by "
                "those of their classes, or give shard arrays (x, y)"
            )
        batches.class_weight = {int(name): float(weight) for name, weight in given.pop("class_weight").items()}


def _passes(model: Any) -> int:
    return max([passes_of(optimizer) for optimizer in optimizers_of(model)], default=1)


def _count_fits(model: Any) -> int:
    """Return how many calls of ``fit`` came before, so that one in a loop over epochs takes a new order each time."""
    fits: int = getattr(model, _FITS, 0)
    object.__setattr__(model, _FITS, fits + 1)
    return fits


def unwatched_fit(model: Any) -> Any:
    """Return ``model.fit`` as Keras or the user has it."""
    return getattr(model, _UNWATCHED, model.fit)


def _listed(callbacks: Any) -> list[Any]:
    if isinstance(callbacks, keras().callbacks.CallbackList):
        raise RecipeError("fit was given a CallbackList; give it a list of callbacks, of which hvdkit keeps the order")
    return list(callbacks) if isinstance(callbacks, (list, tuple)) else [callbacks] if callbacks is not None else []


def _agree(model: Any, callbacks: list[Any], given: dict[str, Any]) -> None:
    """Compare what must be alike, in one exchange; then the weights, if nobody brings them."""
    world, broadcasts = worlds.current(), _broadcasts(callbacks)
    facts = {
        "callbacks": [type(callback).__name__ for callback in callbacks if _is_shared(callback)],
        "validation": "with" if given.get("validation_data") is not None or given.get("validation_split") else "none",
        **{name: given.get(name) for name in ("epochs", "initial_epoch", "steps_per_epoch")},
    }
    epochs, first = given.get("epochs") or 1, given.get("initial_epoch") or 0
    problem = _problem(model, callbacks) or undone_scaling(model, callbacks, epochs, first)
    check_alike(world, "fit is called", facts, problem)
    if broadcasts:
        return
    digests = world.engine.allgather_object([sum_of_bits(to_numpy(weight)) for weight in shared_weights(model)])
    for rank, digest in enumerate(digests):
        if digest != digests[0]:
            raise RecipeError(
                f"rank {rank} starts from other weights than rank 0; put BroadcastGlobalVariablesCallback(0) among the "
                "callbacks, or call hvdkit.keras.broadcast(model, optimizer) first"
            )


def _problem(model: Any, callbacks: list[Any]) -> str | None:
    """Return what is wrong with these callbacks, or None."""
    average = next((i for i, entry in enumerate(callbacks) if isinstance(entry, MetricAverageCallback)), None)
    for place, callback in enumerate(callbacks):
        name = type(callback).__name__
        for kind, reason in _REFUSED.items():
            if isinstance(callback, _of_kinds((kind,))):
                return f"{name} {reason}"
        if average is not None and place < average and isinstance(callback, _of_kinds((*_DECIDERS, *_WRITERS))):
            return f"{name} stands before MetricAverageCallback and would see this rank's metrics; put it behind"
        if average is None and isinstance(callback, _of_kinds(_DECIDERS)):
            return (
                f"{name} would decide on each rank by itself; put hvdkit.keras.callbacks.MetricAverageCallback() "
                "before it"
            )
    if not _broadcasts(callbacks) and not (is_built(model) and model.trainable_variables):
        return (
            "the model is not built, so ranks would start from weights of their own; put "
            "BroadcastGlobalVariablesCallback(0) among the callbacks"
        )
    return None


def _broadcasts(callbacks: list[Any]) -> bool:
    return any(isinstance(callback, BroadcastGlobalVariablesCallback) for callback in callbacks)


def _is_shared(callback: Any) -> bool:
    """Say whether a callback must be there on all ranks or on none."""
    own = (BroadcastGlobalVariablesCallback, MetricAverageCallback, RateCallback)
    return isinstance(callback, (*own, *_of_kinds((*_DECIDERS, "LearningRateScheduler"))))


def _of_kinds(names: tuple[str, ...]) -> tuple[type, ...]:
    return tuple(getattr(keras().callbacks, name) for name in names if hasattr(keras().callbacks, name))
