"""One small model in every framework, and what test bodies do with it; imported by ranks only.

A framework is ``torch``, ``tf`` or ``keras``; the last two train the same Keras model by different verbs.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
from complaints import complaint as complaint

FEATURES, CLASSES = 6, 3


def verbs(framework: str) -> Any:
    return importlib.import_module(f"hvdkit.{framework}")


def samples(count: int, seed: int = 3) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(count, FEATURES)).astype("float32")
    return x, np.argmax(x[:, :CLASSES], 1)


def net(framework: str, seed: int = 0) -> Any:
    """Return a net of two layers; other seeds give other weights."""
    if framework == "torch":
        import torch

        torch.manual_seed(seed)
        return torch.nn.Sequential(torch.nn.Linear(FEATURES, 8), torch.nn.Tanh(), torch.nn.Linear(8, CLASSES))
    import keras
    import keras_runs as runs

    runs.fresh()
    keras.utils.set_random_seed(seed)
    return runs.small_net()


def optimizer_for(framework: str, model: Any, kind: str, lr: float, **options: Any) -> Any:
    """Return a stock optimizer; ``kind`` is SGD, Adam or AdamW."""
    if framework == "torch":
        import torch

        return getattr(torch.optim, kind)(model.parameters(), lr=lr, **options)
    import keras

    return getattr(keras.optimizers, kind)(lr, **options)


def update(framework: str, model: Any, optimizer: Any, x: Any, y: Any, weight: float = 1.0) -> float:
    """Do one update on a batch of tensors or arrays in a custom loop; return the loss."""
    if framework == "torch":
        import torch

        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(torch.as_tensor(x)), torch.as_tensor(y))
        (loss * weight).backward()
        optimizer.step()
        return loss.item()
    import keras_runs as runs
    import tensorflow as tf

    with tf.GradientTape() as tape:
        loss = runs.cross_entropy()(y, model(x, training=True))
        weighted = loss * weight
    variables = model.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(weighted, variables), variables, strict=True))
    return float(loss)


def vector(framework: str, values: list[float]) -> Any:
    """Return a parameter without a model."""
    if framework == "torch":
        import torch

        return torch.nn.Parameter(torch.tensor(values))
    import tensorflow as tf

    return tf.Variable(values)


def push(framework: str, optimizer: Any, parameter: Any, gradient: list[float]) -> None:
    """Do one update with a custom gradient."""
    if framework == "torch":
        import torch

        optimizer.zero_grad()
        (parameter * torch.tensor(gradient)).sum().backward()
        optimizer.step()
        return
    import tensorflow as tf

    if not getattr(optimizer, "built", False):
        optimizer.build([parameter])
    optimizer.apply_gradients([(tf.constant(gradient), parameter)])


def numbers(parameter: Any) -> list[float]:
    return [float(value) for value in (parameter.detach() if hasattr(parameter, "detach") else parameter.numpy())]


def vector_optimizer(framework: str, parameter: Any, lr: float) -> Any:
    if framework == "torch":
        import torch

        return torch.optim.SGD([parameter], lr=lr)
    import keras

    return keras.optimizers.SGD(lr)


def state(framework: str, model: Any, optimizer: Any) -> list[bytes]:
    """Return every weight, slot and learning rate, byte by byte."""
    if framework == "torch":
        slots = [slot for each in optimizer.state_dict()["state"].values() for slot in each.values()]
        tensors = [*model.state_dict().values(), *(slot for slot in slots if slot is not None)]
        found = [tensor.detach().numpy().tobytes() for tensor in tensors]
        return [*found, repr([group["lr"] for group in optimizer.param_groups]).encode()]
    import keras_runs as runs

    return runs.state(model, optimizer)


def rate(framework: str, optimizer: Any) -> float:
    if framework == "torch":
        return float(optimizer.param_groups[0]["lr"])
    import keras_runs as runs

    return float(runs.values([optimizer.learning_rate])[0])


def set_rate(framework: str, optimizer: Any, value: float) -> None:
    if framework == "torch":
        for group in optimizer.param_groups:
            group["lr"] = value
    else:
        optimizer.learning_rate = value


def weights(framework: str, model: Any) -> list[np.ndarray]:
    if framework == "torch":
        return [parameter.detach().numpy().copy() for parameter in model.parameters()]
    import keras_runs as runs

    return runs.values(model.weights)
