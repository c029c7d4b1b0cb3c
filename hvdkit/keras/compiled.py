"""What a model is compiled with, to be compared over ranks."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from hvdkit.keras_common.compat import innermost, name_of
from hvdkit.keras_common.metric_states import leaf_metrics
from hvdkit.keras_common.state.variables import shared_weights, without_counts
from hvdkit.keras_common.trained import optimizers_of
from hvdkit.training.agreement import Facts


def compiled_facts(model: Any) -> Facts:
    """Return metrics, losses, optimizers and weights' shapes as plain values, the same on ranks that are alike."""
    config = _compile_config(model)
    facts: Facts = {"metrics": [without_counts(metric.name) for metric in leaf_metrics(model.metrics)]}
    for name in ("loss", "loss_weights", "metrics", "weighted_metrics"):
        if config.get(name) is not None:
            facts[f"compiled {name}"] = _plain(config[name])
    for place, optimizer in enumerate(optimizers_of(model)):
        facts[f"optimizer {place}"] = type(innermost(optimizer)).__name__
        facts |= {f"optimizer {place}'s {name}": value for name, value in _settings(optimizer)}
    facts["weights"] = [f"{without_counts(name_of(weight))} {tuple(weight.shape)}" for weight in shared_weights(model)]
    return facts


def _compile_config(model: Any) -> dict[str, Any]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return dict(model.get_compile_config() or {})
    except Exception:  # noqa: BLE001 - code of the user's: losses and metrics may have no config
        return {}


def _settings(optimizer: Any) -> Iterator[tuple[str, Any]]:
    """Yield the settings of an optimizer, its learning rate among them."""
    try:
        config = innermost(optimizer).get_config()
    except Exception:  # noqa: BLE001 - code of the user's: an optimizer may have no config
        return
    for name, value in config.items():
        if name != "name":
            yield name.replace("_", " "), _plain(value)


def _plain(value: Any) -> Any:
    """Return a part of a config without what differs between equal objects: registered names count up."""
    if isinstance(value, dict):
        if "class_name" in value:
            inner = value.get("config")
            return [value["class_name"], _plain(inner)]
        return {str(key): _name(entry) if key == "name" else _plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    return value if isinstance(value, (bool, int, float, str, type(None))) else type(value).__name__


def _name(value: Any) -> Any:
    return without_counts(value) if isinstance(value, str) else value
