"""hvdkit: one recipe, three frameworks, any number of processes.

The names below are imported when they are first used, so that ``import hvdkit`` loads no framework, no NumPy and
nothing outside the standard library.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from hvdkit.version import __version__

_HOME = {
    "Recipe": "hvdkit.recipe",
    "Data": "hvdkit.recipe",
    "Init": "hvdkit.steps",
    "Pin": "hvdkit.steps",
    "Shard": "hvdkit.steps",
    "ScaleLR": "hvdkit.steps",
    "Distribute": "hvdkit.steps",
    "Broadcast": "hvdkit.steps",
    "Checkpoint": "hvdkit.steps",
    "Average": "hvdkit.steps",
    "SGD": "hvdkit.optimizers",
    "Adam": "hvdkit.optimizers",
    "AdamW": "hvdkit.optimizers",
    "Adagrad": "hvdkit.optimizers",
    "apply": "hvdkit.assemble",
    "init": "hvdkit.world",
    "run": "hvdkit.launch.function",
    "verify": "hvdkit.verification.session",
}

__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    if name in ("datasets", "errors", "tf", "torch", "keras"):
        return importlib.import_module(f"hvdkit.{name}")
    raise AttributeError(f"module 'hvdkit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


if TYPE_CHECKING:
    from hvdkit.assemble import apply as apply
    from hvdkit.launch.function import run as run
    from hvdkit.optimizers import SGD as SGD
    from hvdkit.optimizers import Adagrad as Adagrad
    from hvdkit.optimizers import Adam as Adam
    from hvdkit.optimizers import AdamW as AdamW
    from hvdkit.recipe import Data as Data
    from hvdkit.recipe import Recipe as Recipe
    from hvdkit.steps import Average as Average
    from hvdkit.steps import Broadcast as Broadcast
    from hvdkit.steps import Checkpoint as Checkpoint
    from hvdkit.steps import Distribute as Distribute
    from hvdkit.steps import Init as Init
    from hvdkit.steps import Pin as Pin
    from hvdkit.steps import ScaleLR as ScaleLR
    from hvdkit.steps import Shard as Shard
    from hvdkit.verification.session import verify as verify
    from hvdkit.world import init as init
