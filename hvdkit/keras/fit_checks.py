"""What is looked at, on all ranks, before ``fit`` takes its first step."""

from __future__ import annotations

import functools
import inspect
import zlib
from typing import Any

from hvdkit.errors import RecipeError
from hvdkit.job import world as worlds
from hvdkit.keras.callbacks import BroadcastGlobalVariablesCallback, MetricAverageCallback
from hvdkit.keras.fit_batches import ArrayBatches
from hvdkit.keras.rate_callbacks import RateCallback
from hvdkit.keras_common.compat import keras, to_numpy

_UNWATCHED = "_hvdkit_fit"
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
    fit = model.fit
    signature = inspect.signature(fit)

    @functools.wraps(fit)
    def checked(*args: Any, **kwargs: Any) -> Any:
        world, bound = worlds.current(), signature.bind(*args, **kwargs)
        given = bound.arguments
        if isinstance(given.get("x"), ArrayBatches) and "shuffle" in signature.parameters:
            given["shuffle"] = False  # they come in their own order, which Keras would change on each rank
        if world.size > 1:
            callbacks = _listed(given.get("callbacks"))
            _agree(model, callbacks, given)
            if not world.is_root:
                given["callbacks"] = [entry for entry in callbacks if not isinstance(entry, _of_kinds(_WRITERS))]
                if "verbose" in signature.parameters:
                    given["verbose"] = 0
        return fit(*bound.args, **bound.kwargs)

    object.__setattr__(model, "fit", checked)
    object.__setattr__(model, _UNWATCHED, fit)


def unwatched_fit(model: Any) -> Any:
    """Return ``model.fit`` as Keras or the user has it."""
    return getattr(model, _UNWATCHED, model.fit)


def _listed(callbacks: Any) -> list[Any]:
    if isinstance(callbacks, keras().callbacks.CallbackList):
        raise RecipeError("fit was given a CallbackList; give it a list of callbacks, of which hvdkit keeps the order")
    return list(callbacks) if isinstance(callbacks, (list, tuple)) else [callbacks] if callbacks is not None else []


def _agree(model: Any, callbacks: list[Any], given: dict[str, Any]) -> None:
    """Compare what must be alike, in one exchange."""
    problem = _problem(model, callbacks)
    facts = {
        "callbacks": [type(callback).__name__ for callback in callbacks if _is_shared(callback)],
        "validation": "with" if given.get("validation_data") is not None or given.get("validation_split") else "none",
        **{name: given.get(name) for name in ("epochs", "initial_epoch", "steps_per_epoch")},
    }
    if problem is None and not _broadcasts(callbacks):
        facts["weights"] = _digest(model.trainable_variables)
    gathered = worlds.current().engine.allgather_object((problem, facts))
    for found, _ in gathered:
        if found is not None:
            raise RecipeError(found)
    for rank, (_, others) in enumerate(gathered):
        _compare(facts=gathered[0][1], others=others, rank=rank)


def _digest(variables: list[Any]) -> int:
    digest = 0
    for variable in variables:
        digest = zlib.crc32(to_numpy(variable).tobytes(), digest)
    return digest


def _compare(facts: dict[str, Any], others: dict[str, Any], rank: int) -> None:
    for name, value in facts.items():
        if others.get(name) == value:
            continue
        if name == "weights":
            raise RecipeError(
                f"rank {rank} starts from other weights than rank 0; put BroadcastGlobalVariablesCallback(0) among the "
                "callbacks, or call hvdkit.keras.broadcast(model, optimizer) first"
            )
        raise RecipeError(f"fit is called with {name} {value!r} on rank 0 but {others.get(name)!r} on rank {rank}")


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
    if not _broadcasts(callbacks) and not (model.built and model.trainable_variables):
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
