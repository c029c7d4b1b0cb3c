"""Metrics that keep a state of their own, given all samples by one process."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hvdkit.training.metric_objects import flat_results


def functions(entries: Iterable[Any]) -> dict[str, Any]:
    """Return the metrics that are functions, by the names of their results."""
    return {
        getattr(entry, "__name__", type(entry).__name__): entry
        for entry in entries
        if callable(entry) and not hasattr(entry, "update") and not hasattr(entry, "update_state")
    }


class HeldMetrics:
    """Objects of torchmetrics or ``keras.metrics``, by name."""

    def __init__(self, metrics: dict[str, Any]) -> None:
        self._metrics = metrics
        self._reset()

    def update(self, outputs: Any, targets: Any, count: int) -> None:
        """Take a batch; none that stands for no sample."""
        for metric in self._metrics.values() if count else ():
            if hasattr(metric, "update_state"):
                metric.update_state(targets, outputs)
            else:
                metric.update(outputs, targets)

    def take_results(self) -> dict[str, float]:
        """Return what they have measured, and begin anew."""
        found: dict[str, float] = {}
        for name, metric in self._metrics.items():
            found |= flat_results(name, metric.result() if hasattr(metric, "result") else metric.compute())
        self._reset()
        return found

    def _reset(self) -> None:
        for metric in self._metrics.values():
            if hasattr(metric, "reset_state"):
                metric.reset_state()
            else:
                metric.reset()
