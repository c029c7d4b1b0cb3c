"""Metric objects of Keras outside of ``fit``, whose states are added up over ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from hvdkit.job.world import World
from hvdkit.keras_common.compat import keras, to_numpy
from hvdkit.keras_common.metric_states import check_additive, leaf_metrics
from hvdkit.training.metric_objects import flat_results

# the arrays of each metric
_States = list[list[Any]]


class KerasMetrics:
    """Keras metrics under their names.

    Attributes:
        names: Those of the metrics.

    Raises:
        ModelError: A metric keeps something that cannot be added up.
    """

    def __init__(self, metrics: list[Any]) -> None:
        for metric in leaf_metrics(metrics):
            check_additive(metric)
        self.names = [metric.name for metric in metrics]
        self._metrics = metrics
        self._count = 0

    def reset(self) -> None:
        """Begin anew."""
        self._count = 0
        for metric in self._metrics:
            metric.reset_state()

    def update(self, outputs: Any, targets: Any, count: int) -> None:
        """Take a batch of this rank; one that stands for no sample is left out."""
        self._count += count
        for metric in self._metrics if count else ():
            metric.update_state(targets, outputs)

    def results(self, world: World | None) -> dict[str, float]:
        """Return the results over all ranks, in one exchange; None for this rank's own."""
        if not self._metrics:
            return {}
        if world is None:
            return self._computed([(self._count, self._states())])
        gathered = world.engine.allgather_object((self._count, self._states()))
        results: dict[str, float] = world.root_only(lambda: self._computed(gathered))
        return results

    def _computed(self, gathered: list[tuple[int, _States]]) -> dict[str, float]:
        # a rank without a sample may not have built its metrics
        held = [states for count, states in gathered if count]
        if not held:
            return dict.fromkeys(self.names, float("nan"))
        own = self._states()
        self._take([[_added(parts) for parts in zip(*entries, strict=True)] for entries in zip(*held, strict=True)])
        results: dict[str, float] = {}
        for metric in self._metrics:
            results |= flat_results(metric.name, metric.result())
        self._take(own)
        return results

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Begin anew inside, and go on from the state of before behind it."""
        states, count = self._states(), self._count
        self.reset()
        try:
            yield
        finally:
            self.reset()
            self._take(states)
            self._count = count

    def _states(self) -> _States:
        return [[np.array(to_numpy(variable)) for variable in metric.variables] for metric in self._metrics]

    def _take(self, states: _States) -> None:
        for metric, arrays in zip(self._metrics, states, strict=True):
            # those that were built meanwhile stay where they begin
            for variable, array in zip(metric.variables, arrays, strict=False):
                variable.assign(array)


def is_metric(entry: Any) -> bool:
    """Say whether this is a metric object of this Keras."""
    return isinstance(entry, keras().metrics.Metric)


def _added(parts: tuple[Any, ...]) -> Any:
    return np.sum([np.asarray(part, np.float64) for part in parts], axis=0).astype(parts[0].dtype)
