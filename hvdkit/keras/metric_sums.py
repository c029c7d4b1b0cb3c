"""Metrics of a Keras model over all ranks, by adding up their own sums and counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hvdkit.errors import RecipeError
from hvdkit.job.world import World
from hvdkit.keras_common.compat import to_numpy
from hvdkit.keras_common.metric_states import check_additive, join_states, leaf_metrics

_RULES = ("sum", "max", "min")


def check_rules(rules: Mapping[str, str]) -> dict[str, str]:
    """Return rules for metrics, checked.

    Raises:
        RecipeError: A rule is unknown.
    """
    for name, rule in rules.items():
        if rule not in _RULES:
            raise RecipeError(f"the rule of metric {name!r} is {rule!r}; it must be one of {', '.join(_RULES)}")
    return dict(rules)


def summed_results(model: Any, world: World, rules: Mapping[str, str] | None = None) -> dict[str, float]:
    """Return the metrics over all ranks as Python floats; the model's own stay this rank's.

    Args:
        model: A compiled Keras model.
        world: The job; called by all ranks.
        rules: How to join the state of some metrics, by their names; all others must be sums.

    Raises:
        ModelError: A metric keeps something that cannot be added up, and has no rule.
    """
    rules = rules or {}
    metrics = leaf_metrics(model.metrics)
    for metric in metrics:
        if metric.name not in rules:
            check_additive(metric)
    states = [variable for metric in metrics for variable in metric.variables]
    local = [to_numpy(variable) for variable in states]
    if world.size > 1 and local:
        joined: dict[int, Any] = {}
        for rule in _RULES:
            mine = [
                variable for metric in metrics if rules.get(metric.name, "sum") == rule for variable in metric.variables
            ]
            joined |= dict(
                zip(map(id, mine), join_states(world, [to_numpy(variable) for variable in mine], rule), strict=True)
            )
        for variable in states:
            variable.assign(joined[id(variable)])
    results = {name: _plain(value) for name, value in model.get_metrics_result().items()}
    for variable, value in zip(states, local, strict=True):
        variable.assign(value)
    return results


def _plain(value: Any) -> Any:
    array = to_numpy(value) if hasattr(value, "numpy") else np.asarray(value)
    return float(array) if np.size(array) == 1 else array
