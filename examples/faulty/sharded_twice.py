"""Wrong: every process takes its own part of the data, and hvdkit takes a part of that part: most are never seen.

hvdkit verify examples/faulty/sharded_twice.py --framework torch

Right: ``data`` returns all samples on every process; step 3 divides them.
"""

from __future__ import annotations

from small_net import SAMPLES, small_recipe

import hvdkit


def data() -> hvdkit.Data:
    """Return this process's samples only."""
    world = hvdkit.init()
    x, y = SAMPLES
    return hvdkit.Data((x[world.rank :: world.size], y[world.rank :: world.size]))


recipe = small_recipe.replace(data=data)
