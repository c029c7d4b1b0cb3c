"""Wrong: the learning rate is multiplied by the number of processes, and step 4 multiplies it once more.

hvdkit verify examples/faulty/scaled_twice.py --framework torch

Right: give the learning rate of one process.
"""

from __future__ import annotations

from typing import Any

from small_net import RATE, small_recipe

import hvdkit


def torch_optimizer(parameters: Any) -> Any:
    """Scale the rate as Horovod's examples do."""
    import torch

    return torch.optim.SGD(parameters, lr=RATE * hvdkit.init().size, momentum=0.9)


def keras_optimizer() -> Any:
    """Scale the rate as Horovod's examples do."""
    import keras

    return keras.optimizers.SGD(RATE * hvdkit.init().size, momentum=0.9)


recipe = small_recipe.replace(optimizer={"torch": torch_optimizer, "tf": keras_optimizer, "keras": keras_optimizer})
