"""What a saved learning rate stands for, so that a run on another number of processes goes on at its own."""

from __future__ import annotations

import sys
from typing import Any

from hvdkit.job.world import World

_KEY = "hvdkit"


def with_rate_factor(world: World, state: dict[str, Any]) -> dict[str, Any]:
    """Return a checkpoint's state with the factor by which ``scale_lr`` has scaled the rate, if it has."""
    return state if world.rate_factor is None else {**state, _KEY: {"rate_factor": world.rate_factor}}


def take_rate_factor(world: World, state: dict[str, Any]) -> float:
    """Take the factor out of a checkpoint's state; return what its learning rate is multiplied by in this run."""
    saved = state.pop(_KEY, {}).get("rate_factor")
    if saved is None or saved == world.rate_factor:
        return 1.0
    if world.rate_factor is None:
        _say(
            world,
            f"the checkpoint's learning rate stays scaled by {saved:g}: scale_lr was not called in this run",
        )
        return 1.0
    _say(world, f"the checkpoint's learning rate was scaled by {saved:g}, and is scaled by {world.rate_factor:g} now")
    return float(world.rate_factor / saved)


def _say(world: World, text: str) -> None:
    if world.is_root:
        sys.stderr.write(f"hvdkit: {text}\n")
