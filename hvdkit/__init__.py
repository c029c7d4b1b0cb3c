"""hvdkit: one recipe, three frameworks, any number of processes.

The names below are imported when they are first used, so that ``import hvdkit`` loads no framework, no NumPy and
nothing outside the standard library.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from hvdkit.version import __version__

_HOME = {
    "Recipe": "hvdkit.recipe.declaration",
    "Data": "hvdkit.recipe.declaration",
    "Init": "hvdkit.recipe.steps",
    "Pin": "hvdkit.recipe.steps",
    "Shard": "hvdkit.recipe.steps",
    "ScaleLR": "hvdkit.recipe.steps",
    "Scheduler": "hvdkit.recipe.scheduler",
    "Distribute": "hvdkit.recipe.steps",
    "Broadcast": "hvdkit.recipe.steps",
    "Checkpoint": "hvdkit.recipe.steps",
    "Average": "hvdkit.recipe.steps",
    "SGD": "hvdkit.recipe.optimizers",
    "Adam": "hvdkit.recipe.optimizers",
    "AdamW": "hvdkit.recipe.optimizers",
    "Adagrad": "hvdkit.recipe.optimizers",
    "apply": "hvdkit.training.assemble",
    "init": "hvdkit.job.world",
    "run": "hvdkit.tools.launch.function",
    "verify": "hvdkit.tools.verification.session",
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
    # each backend keeps the contract
    from hvdkit import keras, tf, torch
    from hvdkit.job.world import init as init
    from hvdkit.recipe.declaration import Data as Data
    from hvdkit.recipe.declaration import Recipe as Recipe
    from hvdkit.recipe.optimizers import SGD as SGD
    from hvdkit.recipe.optimizers import Adagrad as Adagrad
    from hvdkit.recipe.optimizers import Adam as Adam
    from hvdkit.recipe.optimizers import AdamW as AdamW
    from hvdkit.recipe.scheduler import Scheduler as Scheduler
    from hvdkit.recipe.steps import Average as Average
    from hvdkit.recipe.steps import Broadcast as Broadcast
    from hvdkit.recipe.steps import Checkpoint as Checkpoint
    from hvdkit.recipe.steps import Distribute as Distribute
    from hvdkit.recipe.steps import Init as Init
    from hvdkit.recipe.steps import Pin as Pin
    from hvdkit.recipe.steps import ScaleLR as ScaleLR
    from hvdkit.recipe.steps import Shard as Shard
    from hvdkit.tools.launch.function import run as run
    from hvdkit.tools.verification.session import verify as verify
    from hvdkit.training.assemble import apply as apply
    from hvdkit.training.backend import Backend

    _torch: Backend = torch
    _tf: Backend = tf
    _keras: Backend = keras
