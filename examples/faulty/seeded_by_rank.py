"""Wrong: every process draws other initial weights, and nothing makes them equal.

hvdkit verify examples/faulty/seeded_by_rank.py --framework torch

Right: leave ``broadcast`` as it is, so that all start from rank 0's weights.
"""

from __future__ import annotations

from typing import Any

from small_net import keras_net, small_recipe, torch_net

import hvdkit


def seeded_torch_net() -> Any:
    """Draw weights from a seed of this rank's own."""
    import torch

    torch.manual_seed(100 + hvdkit.init().rank)
    return torch_net()


def seeded_keras_net() -> Any:
    """Draw weights from a seed of this rank's own."""
    import keras

    keras.utils.set_random_seed(100 + hvdkit.init().rank)
    return keras_net()


recipe = small_recipe.replace(
    model={"torch": seeded_torch_net, "tf": seeded_keras_net, "keras": seeded_keras_net}, broadcast=None
)
