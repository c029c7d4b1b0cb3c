"""What is noted in Keras: ``fit``, whose training steps run eagerly."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sized
from typing import Any, cast

import numpy as np

import hvdkit.keras
from hvdkit.keras_common.compat import keras, library
from hvdkit.recipe.trees import leaves
from hvdkit.tools.verification.scripts.job import PLAIN, RANKS, Taken
from hvdkit.tools.verification.scripts.keras_watch import KerasWatch
from hvdkit.tools.verification.scripts.loops import join_trees, taken_by_ranks
from hvdkit.tools.verification.scripts.recording import Recorder
from hvdkit.tools.verification.scripts.scratch import Scratch
from hvdkit.tools.verification.scripts.verbs import seen_as
from hvdkit.training.batch import Batch


class KerasHooks:
    """Watches Keras in the process of the script."""

    def __init__(self, recorder: Recorder, scratch: Scratch, seed: int) -> None:
        self._recorder, self._scratch = recorder, scratch
        if library() == "tf":
            import tensorflow as tf

            tf.config.run_functions_eagerly(True)
        self._watch = KerasWatch(recorder, seed)
        self._fits = 0
        self._own_steps: dict[int, Any] = {}

    def install(self) -> None:
        """Watch ``fit``, all optimizers and layers."""
        self._watch.install()
        if library() == "tf":
            import tensorflow as tf

            from hvdkit.tools.verification.scripts.tf_hooks import RANDOM

            self._watch.count_draws(tf.random, tuple(name for name in RANDOM if hasattr(tf.random, name)))
        model = keras().Model
        real = model.fit
        signature = inspect.signature(real)

        @functools.wraps(real)
        def fit(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            self._begin(bound.arguments)
            return real(*bound.args, **bound.kwargs)

        model.fit = fit
        save = model.save

        @functools.wraps(save)
        def saved(own: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
            self._scratch.let_go(filepath)
            return save(own, filepath, *args, **kwargs)

        model.save = saved
        if self._recorder.run not in (RANKS, PLAIN):
            self._warm_up_alike()

    def _warm_up_alike(self) -> None:
        warmup = hvdkit.keras.callbacks.LearningRateWarmupCallback
        real, size = warmup.rate, self._recorder.job.processes

        def rate(callback: Any, epoch: int, batch: int) -> float | None:
            with seen_as(size):
                found: float | None = real(callback, epoch, batch)
                return found

        setattr(warmup, "rate", rate)  # noqa: B010 - for the type check

    def shard(self, batches: Any, number: int) -> None:
        """Do nothing: batches are seen where a training step takes them."""

    def distribute(self, optimizer: Any, model: Any, options: dict[str, Any]) -> None:
        """Note an optimizer that is distributed."""
        self._watch.distributed(optimizer)

    def broadcast(self, model: Any, root: int) -> None:
        """Do nothing: broadcasts are watched where they are made."""

    def _begin(self, given: dict[str, Any]) -> None:
        """Shorten a call of ``fit``, and note or replace what its training steps are given."""
        own, job, number = given["self"], self._recorder.job, self._fits
        self._fits += 1
        if self._recorder.run in (RANKS, PLAIN):
            steps = given.get("steps_per_epoch") or _length(given)
            given["steps_per_epoch"] = min(job.epoch_steps, steps) if steps else job.epoch_steps
        else:
            given["steps_per_epoch"] = self._ranks_steps(number)
        self._recorder.log.lengths[number] = (given["steps_per_epoch"], given["steps_per_epoch"])
        first = given.get("initial_epoch") or 0
        given["epochs"] = min(given.get("epochs") or 1, first + 2)
        self._follow(own, number)

    def _ranks_steps(self, number: int) -> int | None:
        log = self._recorder.job.log(RANKS)
        return None if log is None else log.lengths.get(number, (None, None))[0]

    def _follow(self, model: Any, number: int) -> None:
        train_step, place = self._own_steps.setdefault(id(model), model.train_step), 0
        rows = [] if self._recorder.run in (RANKS, PLAIN) else taken_by_ranks(self._recorder.job, number)

        def followed(*args: Any) -> Any:
            nonlocal place
            data = args[-1]
            if rows:
                data = self._whole(rows[min(place, len(rows) - 1)])
            place += 1
            weights = data[2] if isinstance(data, tuple) and len(data) == 3 else None
            count = _rows(data) if weights is None or np.any(np.asarray(weights)) else 0
            tree = tuple(part for part in data if part is not None) if isinstance(data, tuple) else data
            self._recorder.batch(number, Batch.of(tree, count, None, epoch=0, number=place), self._watch.new_batch())
            return train_step(*args[:-1], data)

        object.__setattr__(model, "train_step", followed)

    def _whole(self, row: tuple[Taken, ...]) -> Any:
        return join_trees(row, self._recorder.run, _join)


def _length(given: dict[str, Any]) -> int | None:
    x = given.get("x")
    if isinstance(x, (list, tuple, dict)) or hasattr(x, "shape"):
        return -(-len(next(leaves(x))) // (given.get("batch_size") or 32))
    try:
        return len(cast(Sized, x))
    except TypeError:
        return None


def _rows(data: Any) -> int:
    return int(next(leaves(data)).shape[0])


def _join(parts: list[Any]) -> Any:
    if keras().backend.backend() == "torch":
        import torch

        return torch.cat(parts)
    import tensorflow as tf

    return tf.concat(parts, 0)


def make_hooks(recorder: Recorder, scratch: Scratch, seed: int) -> KerasHooks:
    """Return what watches Keras."""
    return KerasHooks(recorder, scratch, seed)
