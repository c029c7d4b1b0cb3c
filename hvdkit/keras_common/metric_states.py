"""The state of Keras metrics, and how it is joined over ranks."""

from __future__ import annotations

from typing import Any

import numpy as np

from hvdkit.errors import ModelError
from hvdkit.job.world import World
from hvdkit.keras_common.compat import inner_metrics, keras


def join_states(world: World, local: list[Any], rule: str) -> list[Any]:
    """Return arrays joined over ranks by ``sum``, ``max`` or ``min``, in float64 on the way; called by all ranks."""
    if not local:
        return []
    flat = np.concatenate([np.asarray(value, np.float64).reshape(-1) for value in local])
    total = world.allreduce(flat, rule)
    ends = np.cumsum([value.size for value in local])
    return [
        total[end - value.size : end].reshape(value.shape).astype(value.dtype)
        for value, end in zip(local, ends, strict=True)
    ]


def leaf_metrics(metrics: Any) -> list[Any]:
    """Return the metrics that metrics are made of, each once."""
    leaves: list[Any] = []
    for metric in metrics:
        inner = inner_metrics(metric)
        leaves.extend(leaf_metrics(inner) if inner else [metric])
    return list({id(leaf): leaf for leaf in leaves}.values())


def check_additive(metric: Any) -> None:
    """Check that a metric's state can be added up over ranks: that of Keras's own, or of one derived from them.

    Raises:
        ModelError: It keeps another state.
    """
    for kind in type(metric).__mro__:
        if kind.__name__ == "Metric":
            break
        if kind.__module__.startswith(("keras.", "tf_keras.")):
            if kind is not type(metric) and _has_more(metric):
                break
            return
    raise ModelError(
        f"metric {metric.name!r} ({type(metric).__name__}) keeps its own state, which hvdkit cannot add up over "
        "ranks; derive it from keras.metrics.Mean or Sum, or give MetricAverageCallback a rule for it"
    )


def _has_more(metric: Any) -> bool:
    """Say whether a metric that is derived from a mean or a sum keeps more than that."""
    known = ((keras().metrics.Mean, 2), (keras().metrics.Sum, 1))
    return any(isinstance(metric, kind) and len(metric.variables) > number for kind, number in known)
