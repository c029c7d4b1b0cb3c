"""A net with BatchNorm and dropout on several ranks, and what of it must agree; imported by ranks only."""

from __future__ import annotations

from typing import Any

import numpy as np

import hvdkit
from hvdkit.job.arrays import sha256
from hvdkit.job.world import current
from hvdkit.training.observers import Observer

FEATURES, COUNT, BATCH = 6, 37, 4


def train(framework: str, folder: str) -> dict[str, Any]:
    """Train two epochs, save, go on for two from the file that only rank 0 sees; return what the ranks hold."""
    x, y = np.random.default_rng(0).normal(size=(COUNT + 9, FEATURES)).astype(np.float32), np.arange(COUNT + 9) % 3
    watch = Agreement()
    recipe = hvdkit.Recipe(
        model=torch_net if framework == "torch" else keras_net,
        data=hvdkit.Data(train=(x[:COUNT], y[:COUNT]), validation=(x[COUNT:], y[COUNT:])),
        optimizer=hvdkit.SGD(0.05, momentum=0.9),
        batch_size=BATCH,
        seed=3,
        scale_lr=hvdkit.ScaleLR(warmup_epochs=3),
        checkpoint=hvdkit.Checkpoint(f"{folder}/rank{current().rank}"),
        observers=(watch,),
    )
    hvdkit.apply(recipe, framework).fit(2)
    trainer = hvdkit.apply(recipe, framework)
    resumed = sha256(statistics(trainer))
    trainer.fit(4)
    return {
        "updates": watch.updates,
        "evaluated": watch.evaluated,
        "local statistics": watch.local,
        "resumed statistics": resumed,
        "mask": mask(trainer),
    }


class Agreement(Observer):
    """Digests: of parameters, slots and rate after every update, and of statistics at every evaluation."""

    def __init__(self) -> None:
        self.updates: list[str] = []
        self.local: list[str] = []
        self.evaluated: list[str] = []

    def on_step_end(self, trainer: Any) -> None:
        self.updates.append(sha256(shared(trainer)))
        self.local.append(sha256(statistics(trainer)))

    def on_epoch_end(self, trainer: Any, record: dict[str, Any]) -> None:
        self.evaluated.append(sha256(statistics(trainer)))


def torch_net() -> Any:
    """Build the net in torch; every rank draws other weights."""
    import torch
    from torch import nn

    torch.manual_seed(current().rank)
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 3))


def keras_net() -> Any:
    """Build the net in Keras; every rank draws other weights."""
    import keras
    import keras_runs

    keras_runs.fresh()
    keras.utils.set_random_seed(current().rank)
    layers = keras.layers
    inputs = keras.Input((FEATURES,))
    x = layers.BatchNormalization(momentum=0.9)(layers.Dense(8)(inputs))
    return keras.Model(inputs, layers.Dense(3)(layers.Dropout(0.3)(layers.Activation("tanh")(x))))


def shared(trainer: Any) -> dict[str, Any]:
    """Return parameters, slots and learning rate."""
    if trainer.framework == "torch":
        from framework_runs import torch_state

        state, rate = torch_state(trainer)
        return {**state, "rate": np.array(rate)}
    import keras_runs

    optimizer = trainer.optimizer
    found = keras_runs.values([*trainer.model.trainable_variables, *optimizer.variables, optimizer.learning_rate])
    return {str(number): value for number, value in enumerate(found)}


def statistics(trainer: Any) -> dict[str, Any]:
    """Return BatchNorm's running statistics."""
    if trainer.framework == "torch":
        return {name: value.numpy().copy() for name, value in trainer.model.named_buffers() if "running" in name}
    import keras_runs

    found = [value for value in trainer.model.non_trainable_variables if "moving" in value.name]
    assert len(found) == 2
    return {str(number): value for number, value in enumerate(keras_runs.values(found))}


def mask(trainer: Any) -> bytes:
    """Return what dropout lets through of 200 ones."""
    if trainer.framework == "torch":
        import torch

        return torch.nn.functional.dropout(torch.ones(200), 0.5).numpy().tobytes()
    import keras
    import keras_runs

    layer = next(layer for layer in trainer.model.layers if isinstance(layer, keras.layers.Dropout))
    return keras_runs.values([layer(np.ones((1, 200), np.float32), training=True)])[0].tobytes()
