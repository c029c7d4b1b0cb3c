"""A case of the matrix in a framework; imported by ranks only, which have that framework alone."""

from __future__ import annotations

from typing import Any

import numpy as np
from cases import CASES
from numpy_models import HIDDEN, TOKENS, VOCABULARY, WIDTH, Arrays, initial
from numpy_reference import Case

import hvdkit
from hvdkit.job.arrays import sha256
from hvdkit.job.world import current
from hvdkit.training.observers import Observer


def trained(framework: str, name: str, dtype: str) -> dict[str, Any]:
    """Train a case by ``hvdkit.apply``; return its weights and the state after every update.

    Every rank but the first starts elsewhere, so that a missing broadcast is seen.
    """
    case, watch = CASES[name], States()
    weights = {key: value + 0.1 * current().rank for key, value in initial(case.model).items()}
    build = torch_net if framework == "torch" else keras_net
    with float_type(framework, dtype):
        recipe = case.recipe(model=lambda: build(case, weights, dtype), dtype=dtype, observers=(watch,))
        trainer = hvdkit.apply(recipe, framework)
        trainer.fit(case.epochs(current().size))
        watch.note(trainer)
        return {"weights": named_weights(framework, trainer.model), "states": watch.states, "rates": watch.rates}


class States(Observer):
    """Notes a digest of parameters and optimizer state, and the learning rate, after every update.

    On JAX only at the end: Keras keeps its variables out of reach until ``fit`` is done.
    """

    def __init__(self) -> None:
        self.states: list[str] = []
        self.rates: list[float] = []

    def on_step_end(self, trainer: Any) -> None:
        if keras_library(trainer.framework) != "jax":
            self.note(trainer)

    def note(self, trainer: Any) -> None:
        if trainer.framework == "torch":
            state, rate = torch_state(trainer)
        else:
            import keras_runs

            (rate,) = keras_runs.values([trainer.optimizer.learning_rate])
            values = keras_runs.state(trainer.model, trainer.optimizer)
            state = {str(number): np.frombuffer(value, np.uint8) for number, value in enumerate(values)}
        self.states.append(sha256(state))
        self.rates.append(float(rate))


def keras_library(framework: str) -> str:
    """Return what Keras runs on; empty in torch."""
    import sys

    return sys.modules["keras"].backend.backend() if framework == "keras" else ""


def torch_state(trainer: Any) -> tuple[Arrays, float]:
    """Return parameters and slots as arrays, and the learning rate."""
    found = {name: value.detach().numpy().copy() for name, value in trainer.model.named_parameters()}
    for key, slots in trainer.optimizer.state_dict()["state"].items():
        found |= {f"{key}.{name}": np.asarray(value) for name, value in slots.items() if value is not None}
    return found, trainer.optimizer.param_groups[0]["lr"]


def torch_net(case: Case, weights: Arrays, dtype: str) -> Any:
    """Build a case's model in torch from named arrays."""
    import torch
    from torch import nn

    layers: dict[str, nn.Module] = {}
    if "embedding" in weights:
        layers |= {"embedding": nn.Embedding(VOCABULARY, WIDTH, sparse=case.sparse), "flatten": nn.Flatten()}
    for name in ("hidden", "last"):
        if f"{name}/kernel" in weights:
            layers[name] = nn.Linear(*weights[f"{name}/kernel"].shape)
            if name == "hidden":
                layers["tanh"] = nn.Tanh()
    net = nn.Sequential()
    for name, layer in layers.items():
        net.add_module(name, layer)
    parameters = dict(net.named_parameters())
    with torch.no_grad():
        for name, value in weights.items():
            place = {"embedding": "embedding.weight"}.get(name, name.replace("/kernel", ".weight").replace("/", "."))
            parameters[place].data = torch.from_numpy(value.T.copy() if "kernel" in name else value).to(
                getattr(torch, dtype)
            )
    return net


def keras_net(case: Case, weights: Arrays, dtype: str) -> Any:
    """Build a case's model in Keras from named arrays; the layers take the current floating-point type."""
    import keras

    layers = keras.layers
    if "embedding" in weights:
        inputs = keras.Input((TOKENS,), dtype="int64")
        x = layers.Flatten()(layers.Embedding(VOCABULARY, WIDTH, name="embedding")(inputs))
    else:
        inputs = x = keras.Input((len(next(iter(weights.values()))),), dtype=dtype)
    if "hidden/kernel" in weights:
        x = layers.Dense(HIDDEN, activation="tanh", name="hidden")(x)
    net = keras.Model(inputs, layers.Dense(len(weights["last/bias"]), name="last")(x))
    for name, value in weights.items():
        layer, _, part = name.partition("/")
        getattr(net.get_layer(layer), part or "embeddings").assign(value.astype(dtype))
    return net


def named_weights(framework: str, model: Any) -> Arrays:
    """Return a model's weights in the layout of the reference, float64."""
    if framework == "torch":
        found = {}
        for name, value in model.named_parameters():
            layer, part = name.split(".")
            array = value.detach().numpy().astype(np.float64)
            found[layer if layer == "embedding" else f"{layer}/{'kernel' if part == 'weight' else part}"] = (
                array.T if part == "weight" and layer != "embedding" else array
            )
        return found
    import keras_runs

    found = {}
    for layer in model.layers:
        for part, value in zip(("kernel", "bias"), keras_runs.values(layer.weights), strict=False):
            found["embedding" if layer.name == "embedding" else f"{layer.name}/{part}"] = value.astype(np.float64)
    return found


class float_type:  # noqa: N801 - a context manager, used like a function
    """Let Keras compute in another floating-point type for a while."""

    def __init__(self, framework: str, dtype: str) -> None:
        self._keras, self._dtype = framework != "torch", dtype

    def __enter__(self) -> None:
        if self._keras:
            import keras
            import keras_runs

            keras_runs.fresh()
            keras.backend.set_floatx(self._dtype)

    def __exit__(self, *_: object) -> None:
        if self._keras:
            import keras

            keras.backend.set_floatx("float32")
