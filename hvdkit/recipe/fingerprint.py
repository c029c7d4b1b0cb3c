"""What of a recipe decides how training goes on: a checkpoint holds it, and a later recipe is compared with it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from hvdkit.recipe.declaration import Recipe

_FIELDS = (
    "loss",
    "optimizer",
    "seed",
    "steps_per_epoch",
    "schedule",
    "scheduler",
    "precision",
    "shard",
    "scale_lr",
    "distribute",
)
# a run may go on with others: the global batch is kept, and how batches are read changes no number
_FREE = ("distribute.accumulate", "shard.workers", "shard.prefetch", "shard.pin_memory", "shard.on_device")


def fingerprint(recipe: Recipe, framework: str) -> dict[str, str]:
    """Return what decides, by the names of fields; functions stand for themselves by their names."""
    found: dict[str, str] = {}
    for name in _FIELDS:
        _describe(name, recipe.pick(name, framework), found)
    return {name: text for name, text in found.items() if name not in _FREE}


def differences(saved: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return what has changed, each in words."""
    return [
        f"{name} {saved.get(name, 'unset')} (now {now.get(name, 'unset')})"
        for name in dict.fromkeys([*saved, *now])
        if saved.get(name) != now.get(name)
    ]


def _describe(name: str, value: Any, found: dict[str, str]) -> None:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        found[name] = type(value).__name__
        for field in dataclasses.fields(value):
            _describe(f"{name}.{field.name}", getattr(value, field.name), found)
    elif callable(value):
        found[name] = getattr(value, "__name__", type(value).__name__)
    else:
        found[name] = repr(value) if isinstance(value, (str, int, float, tuple, type(None))) else type(value).__name__
