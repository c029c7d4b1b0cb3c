"""The recipe that mutants are tried on, and how a mutant is made."""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import hvdkit

SAMPLES, FEATURES, CLASSES, BATCH = 21, 6, 3, 4


@dataclass(frozen=True)
class Mutant:
    """One fault.

    Attributes:
        step: The step that the tool must name.
        frameworks: Where the fault can be made.
        apply: Makes it.
        changes: What the recipe needs so that it matters.
        nodes: Processes are told apart as if each were on a separate node.
    """

    step: str
    frameworks: tuple[str, ...]
    apply: Callable[[], None]
    changes: dict[str, Any]
    nodes: bool = False


MUTANTS: dict[str, Mutant] = {}
ALL = ("torch", "tf", "keras")


def mutant(step: str, frameworks: tuple[str, ...] = ALL, nodes: bool = False, **changes: Any) -> Any:
    def register(apply: Callable[[], None]) -> Callable[[], hvdkit.Recipe]:
        MUTANTS[apply.__name__] = Mutant(step, frameworks, apply, changes, nodes)
        return functools.partial(_broken, MUTANTS[apply.__name__])

    return register


def _broken(chosen: Mutant) -> hvdkit.Recipe:
    if chosen.nodes:
        os.environ["HVDKIT_NODE"] = f"node-{os.environ.get('RANK', os.environ.get('OMPI_COMM_WORLD_RANK', '0'))}"
    chosen.apply()
    return recipe.replace(**chosen.changes)


def data() -> hvdkit.Data:
    random = np.random.default_rng(7)
    x = random.normal(size=(SAMPLES + 11, FEATURES)).astype(np.float32)
    y = random.integers(0, CLASSES, SAMPLES + 11)
    return hvdkit.Data((x[:SAMPLES], y[:SAMPLES]), (x[SAMPLES:], y[SAMPLES:]))


def torch_net(normal: bool = False, dropout: bool = False) -> Any:
    import torch

    middle = torch.nn.BatchNorm1d(8) if normal else torch.nn.Dropout(0.4) if dropout else torch.nn.Tanh()
    return torch.nn.Sequential(torch.nn.Linear(FEATURES, 8), middle, torch.nn.Linear(8, CLASSES))


def keras_net(normal: bool = False, dropout: bool = False) -> Any:
    from hvdkit.keras_common.compat import keras

    layers = keras().layers
    inputs = keras().Input((FEATURES,))
    middle = layers.BatchNormalization() if normal else layers.Dropout(0.4) if dropout else layers.Activation("tanh")
    return keras().Model(inputs, layers.Dense(CLASSES)(middle(layers.Dense(8)(inputs))))


def nets(normal: bool, dropout: bool = False) -> dict[str, Any]:
    keras_one = functools.partial(keras_net, normal, dropout)
    return {"torch": functools.partial(torch_net, normal, dropout), "tf": keras_one, "keras": keras_one}


recipe = hvdkit.Recipe(
    model=nets(False),
    data=data,
    optimizer=hvdkit.SGD(lr=0.05, momentum=0.9),
    metrics=("accuracy",),
    batch_size=BATCH,
    epochs=2,
    seed=3,
    scale_lr=hvdkit.ScaleLR("linear", warmup_epochs=1),
)
normalised = recipe.replace(model=nets(True))
synchronised = normalised.replace(distribute=hvdkit.Distribute(sync_batchnorm=True))
accumulated = recipe.replace(distribute=hvdkit.Distribute(accumulate=2, clip_norm=0.1), optimizer=hvdkit.Adam(lr=0.01))


def mean_of_outputs(outputs: Any, targets: Any) -> Any:
    """A metric that is a mean, in torch."""
    return outputs.mean()


def mean_output(targets: Any, outputs: Any) -> Any:
    """A metric that is a mean, in tf and keras."""
    import tensorflow as tf

    return tf.reduce_mean(outputs, -1)


def measured() -> hvdkit.Recipe:
    """A recipe with metrics of all kinds."""
    if backends()[0].__name__ == "hvdkit.torch":
        import torchmetrics

        held = torchmetrics.Accuracy(task="multiclass", num_classes=CLASSES, top_k=2)
        return recipe.replace(metrics=("accuracy", mean_of_outputs, held))
    from hvdkit.keras_common.compat import keras

    held = keras().metrics.SparseTopKCategoricalAccuracy(2, name="best_two")
    return recipe.replace(metrics=("accuracy", mean_output, held))


def backends() -> list[Any]:
    """Return the backends that this environment can import; torch and TensorFlow never in one process."""
    framework = next(
        (a for a in ("torch", "tf", "keras") if f"hvdkit.tools.verification.{_side(a)}" in sys.modules), "torch"
    )
    names = ("torch",) if framework == "torch" else ("tf", "keras")
    return [importlib.import_module(f"hvdkit.{name}") for name in names]


def _side(framework: str) -> str:
    return "torch_view" if framework == "torch" else "keras_view"
