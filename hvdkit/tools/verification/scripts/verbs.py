"""Puts noting functions in the place of hvdkit's verbs, before the script is run."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Protocol

import numpy as np

from hvdkit.errors import HvdkitError
from hvdkit.job import world as worlds
from hvdkit.job.arrays import on_host
from hvdkit.tools.verification.scripts.job import PLAIN, RANKS
from hvdkit.tools.verification.scripts.recording import Recorder, digest_of

_OTHERS = ("pin", "save", "restore", "warmup", "load_model", "synchronise_statistics", "scale_lr", "steps")


class Hooks(Protocol):
    """What one framework adds."""

    def install(self) -> None:
        """Watch optimizers, and whatever else is no verb."""

    def shard(self, batches: Any, number: int) -> None:
        """Follow the batches of training that ``shard`` returned."""

    def distribute(self, optimizer: Any, model: Any, options: dict[str, Any]) -> None:
        """Take note of an optimizer that is about to be distributed."""

    def broadcast(self, model: Any, root: int) -> None:
        """Take note of a model that is about to be broadcast."""


@contextmanager
def seen_as(size: int) -> Iterator[None]:
    """Let this process be one of so many inside, for what depends on their number alone."""
    world = worlds.current()
    own, world.size = world.size, size
    try:
        yield
    finally:
        world.size = own


class TwinWorld:
    """The world as a script on one process sees it that stands for all ranks."""

    def __init__(self, world: worlds.World, recorder: Recorder) -> None:
        self._world, self._recorder = world, recorder

    @property
    def size(self) -> int:
        """The number of ranks; it is noted that the script has asked for it."""
        self._recorder.log.facts["size read"] = True
        return self._recorder.job.processes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._world, name)


class Verbs:
    """The verbs of one module, noted."""

    def __init__(self, module: ModuleType, recorder: Recorder, hooks: Hooks) -> None:
        self._module, self._recorder, self._hooks = module, recorder, hooks
        self._trained = 0
        # fit shares out arrays only where it is guarded
        self._guarded = recorder.job.framework == "keras"

    def install(self) -> None:
        """Replace them."""
        worlds.init = self._init(worlds.init)
        self._replace("init", lambda real, *args, **kwargs: real(*args, **kwargs))
        for name in ("shard", "distribute", "broadcast", "average", "evaluate", "gather"):
            self._replace(name, getattr(self, f"_{name}"))
        for name in _OTHERS:
            self._replace(name, lambda real, *args, **kwargs: real(*args, **kwargs))
        if self._recorder.run not in (RANKS, PLAIN):
            self._replace("scale_lr", self._scale_lr)

    def _replace(self, name: str, action: Callable[..., Any]) -> None:
        real = getattr(self._module, name) if name in vars(self._module) else None
        if real is None:
            return
        log = self._recorder.log

        @functools.wraps(real)
        def noted(*args: Any, **kwargs: Any) -> Any:
            if name not in log.verbs:
                log.verbs.append(name)
            try:
                return action(real, *args, **kwargs)
            except HvdkitError as error:
                log.facts.setdefault("failed", (name, str(error)))
                raise

        setattr(self._module, name, noted)

    def _init(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def init(
            engine: str = "auto", library: str | None = None, guard: bool | None = None, limits: Any = None
        ) -> Any:
            del guard
            # what the guard would stop at is for the checks to find
            if "init" not in self._recorder.log.verbs:
                self._recorder.log.verbs.append("init")
            if self._recorder.on_ranks:
                return real(engine, library, self._guarded, limits)
            world = real("auto", library, False)
            return world if self._recorder.run == PLAIN else TwinWorld(world, self._recorder)

        return init

    def _scale_lr(self, real: Any, *args: Any, **kwargs: Any) -> Any:
        """Scale the rate as on all ranks, for the global batches that this process is given."""
        with seen_as(self._recorder.job.processes):
            return real(*args, **kwargs)

    def _shard(self, real: Any, *args: Any, **kwargs: Any) -> Any:
        world = worlds.current()
        world.guard = True  # data that differ between ranks are refused as ever
        try:
            batches = real(*args, **kwargs)
        finally:
            world.guard = self._guarded
        if kwargs.get("train", True):
            self._hooks.shard(batches, self._trained)
            self._trained += 1
        return batches

    def _distribute(self, real: Any, optimizer: Any, model: Any = None, **options: Any) -> Any:
        self._hooks.distribute(optimizer, model, options)
        return real(optimizer, model, **options)

    def _broadcast(self, real: Any, model: Any, optimizer: Any = None, root: int = 0, **options: Any) -> Any:
        self._hooks.broadcast(model, root)
        return real(model, optimizer, root, **options)

    def _average(self, real: Any, metrics: Any, count: float = 1) -> Any:
        result = real(metrics, count)
        self._recorder.log.averages.append({"given": _plain(metrics), "count": float(count), "result": _plain(result)})
        return result

    def _evaluate(self, real: Any, *args: Any, **kwargs: Any) -> Any:
        result = real(*args, **kwargs)
        self._recorder.log.results.append(("evaluate", _plain(result)))
        return result

    def _gather(self, real: Any, predictions: Any) -> Any:
        result = real(predictions)
        self._recorder.log.results.append(("gather", digest_of(result)))
        return result


def _plain(value: Any) -> Any:
    """Return numbers as a dict of float64 arrays."""
    entries = value if isinstance(value, dict) else {"": value}
    return {str(name): np.asarray(on_host(entry), np.float64) for name, entry in entries.items()}
