"""What is noted in a TensorFlow loop of one's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from hvdkit.tools.verification.scripts.job import PLAIN, RANKS
from hvdkit.tools.verification.scripts.keras_watch import KerasWatch
from hvdkit.tools.verification.scripts.loops import follow, replay
from hvdkit.tools.verification.scripts.recording import Recorder
from hvdkit.tools.verification.scripts.scratch import Scratch

RANDOM = ("normal", "uniform", "truncated_normal", "shuffle", "gamma", "poisson", "categorical", "random_gamma")


class TfHooks:
    """Watches TensorFlow in the process of the script."""

    def __init__(self, recorder: Recorder, seed: int) -> None:
        # a tf.function runs as plain Python, so that every update can be seen
        tf.config.run_functions_eagerly(True)
        self._recorder = recorder
        self._watch = KerasWatch(recorder, seed)

    def install(self) -> None:
        """Watch all optimizers and layers."""
        self._watch.install()
        self._watch.count_draws(tf.random, tuple(name for name in RANDOM if hasattr(tf.random, name)))

    def shard(self, batches: Any, number: int) -> None:
        """Follow the batches of training."""
        if self._recorder.run in (RANKS, PLAIN):
            follow(batches, number, self._recorder, self._watch.new_batch)
        else:
            replay(batches, number, self._recorder, join, self._watch.new_batch)

    def distribute(self, optimizer: Any, model: Any, options: dict[str, Any]) -> None:
        """Note an optimizer that is distributed."""
        if isinstance(optimizer, tf.GradientTape):
            self._recorder.log.facts["tape"] = True
        else:
            self._watch.distributed(optimizer)

    def broadcast(self, model: Any, root: int) -> None:
        """Do nothing: broadcasts are watched where they are made."""


def join(parts: list[Any]) -> Any:
    """Return batches one behind the other."""
    if tf.is_tensor(parts[0]):
        return tf.concat(parts, 0)
    return np.concatenate(parts)


def make_hooks(recorder: Recorder, scratch: Scratch, seed: int) -> TfHooks:
    """Return what watches TensorFlow."""
    del scratch
    return TfHooks(recorder, seed)
