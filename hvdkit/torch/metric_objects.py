"""Metrics of torchmetrics, whose states are joined over ranks by their own ``dist_reduce_fx``."""

from __future__ import annotations

import itertools
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from hvdkit.errors import RecipeError
from hvdkit.job.world import World
from hvdkit.recipe.trees import map_tree
from hvdkit.training.metric_objects import flat_results

# of each metric inside a metric, its states by name
States = list[dict[str, Any]]


class TorchMetrics:
    """Metrics of torchmetrics under their names.

    Attributes:
        names: Those of the metrics.
    """

    def __init__(self, metrics: dict[str, Any], device: str | torch.device) -> None:
        for name, metric in metrics.items():
            _check(name, metric)
            metric.to(device)
        self.names = list(metrics)
        self._metrics = metrics
        self._count = 0

    def reset(self) -> None:
        """Begin anew."""
        self._count = 0
        for metric in self._metrics.values():
            metric.reset()

    def update(self, outputs: Any, targets: Any, count: int) -> None:
        """Take a batch of this rank; one that stands for no sample is left out."""
        self._count += count
        for metric in self._metrics.values() if count else ():
            metric.update(map_tree(torch.Tensor.detach, outputs), targets)

    def results(self, world: World | None) -> dict[str, float]:
        """Return the results over all ranks, in one exchange; None for this rank's own."""
        if not self._metrics:
            return {}
        own = self._count, [_states(metric) for metric in self._metrics.values()]
        if world is None:
            return self._computed([own])
        gathered = world.engine.allgather_object(own)
        results: dict[str, float] = world.root_only(lambda: self._computed(gathered))
        return results

    def _computed(self, gathered: list[tuple[int, list[States]]]) -> dict[str, float]:
        # ranks without a sample hold nothing but where they began
        held = [entry for entry in gathered if entry[0]]
        results: dict[str, float] = {}
        for place, (name, metric) in enumerate(self._metrics.items()):
            if not held:
                results[name] = float("nan")
                continue
            joined = metric.clone()
            joined.reset()
            for number, part in enumerate(_parts(joined)):
                # the states are those of all ranks already
                part.distributed_available_fn = lambda: False
                states = [(states[place][number], count) for count, states in held]
                for state, value in _joined(part, states).items():
                    setattr(part, state, _on(value, part.device))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # it was updated, on the ranks
                found = joined.compute()
            results |= flat_results(name, found)
        return results

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Begin anew inside, and go on from the state of before behind it."""
        kept = self._metrics, self._count
        self._metrics = {name: metric.clone() for name, metric in kept[0].items()}
        self.reset()
        try:
            yield
        finally:
            self._metrics, self._count = kept


def named_objects(entry: Any) -> dict[str, Any]:
    """Return metrics of torchmetrics in an entry of ``metrics``, by name; empty if it is none of its objects."""
    library: Any = sys.modules.get("torchmetrics")
    if library is None:
        return {}
    if isinstance(entry, library.MetricCollection):
        return dict(entry.items())
    return {type(entry).__name__: entry} if isinstance(entry, library.Metric) else {}


def _parts(metric: Any) -> list[Any]:
    """Return a metric and the metrics that it is made of."""
    library: Any = sys.modules["torchmetrics"]
    return [part for part in metric.modules() if isinstance(part, library.Metric)]


def _states(metric: Any) -> States:
    return [{name: _on(value, "cpu") for name, value in part.metric_state.items()} for part in _parts(metric)]


def _on(value: Any, device: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().to(device)
    return type(value)(_on(entry, device) for entry in value) if isinstance(value, (list, tuple)) else value


def _check(name: str, metric: Any) -> None:
    """Refuse a metric whose states cannot be joined."""
    parts = _parts(metric)
    if not any(part.metric_state for part in parts):
        raise RecipeError(f"metric {name!r} has no state that add_state made, so ranks cannot join it; use add_state")
    for part in parts:
        if not part.sync_on_compute:
            raise RecipeError(f"metric {name!r} has sync_on_compute=False, so ranks would not join it; leave it out")
        for state, rule in part._reductions.items():
            own = not type(part).__module__.startswith("torchmetrics.")
            if own and rule is None and isinstance(getattr(part, state), torch.Tensor):
                raise RecipeError(
                    f"metric {name!r} keeps {state!r} with dist_reduce_fx=None, so hvdkit cannot join it over ranks; "
                    "give add_state one of sum, mean, max, min, cat"
                )


def _joined(part: Any, held: list[tuple[dict[str, Any], int]]) -> dict[str, Any]:
    """Join the states of a metric over ranks with how many samples stand behind each."""
    if len(held) == 1:
        return held[0][0]
    rules: dict[str, Callable[[Any], Any] | None] = part._reductions
    counts = [count for _, count in held]
    return {name: _reduced([states[name] for states, _ in held], rule, counts) for name, rule in rules.items()}


def _reduced(values: list[Any], rule: Callable[[Any], Any] | None, counts: list[int]) -> Any:
    if isinstance(values[0], list):
        flat = list(itertools.chain.from_iterable(values))
        return rule(flat) if rule is not None and flat else flat
    kind = getattr(rule, "__name__", "")
    if kind == "dim_zero_cat":
        return rule(values) if rule is not None else values
    stacked = torch.stack([torch.as_tensor(value) for value in values])
    if kind == "dim_zero_mean":
        shares = torch.tensor(counts, dtype=torch.float64) / sum(counts)
        return torch.tensordot(shares, stacked.double(), dims=1).to(stacked.dtype)
    return stacked if rule is None else rule(stacked)
