"""Small models in float64 NumPy, with gradients written out by hand.

A model is a dict of arrays in the layout of Keras, kernels (in, out). ``last`` alone is linear softmax; ``hidden``
makes it a net of two layers with tanh, and ``embedding`` one whose inputs are tokens.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Arrays = dict[str, Array]

FEATURES, HIDDEN, CLASSES = 6, 5, 3
VOCABULARY, TOKENS, WIDTH = 9, 4, 3
SHAPES = {
    "embedding": (VOCABULARY, WIDTH),
    "hidden/kernel": (FEATURES, HIDDEN),
    "hidden/bias": (HIDDEN,),
    "last/kernel": (HIDDEN, CLASSES),
    "last/bias": (CLASSES,),
}


def initial(model: str, seed: int = 1) -> Arrays:
    """Draw the weights of ``softmax``, ``mlp`` or ``embedding``, float64."""
    shapes = dict(SHAPES)
    if model == "embedding":
        shapes["hidden/kernel"] = (TOKENS * WIDTH, HIDDEN)
    else:
        del shapes["embedding"]
    if model == "softmax":
        shapes = {"last/kernel": (FEATURES, CLASSES), "last/bias": (CLASSES,)}
    generator = np.random.default_rng(seed)
    return {name: 0.5 * generator.normal(size=shape) for name, shape in shapes.items()}


def samples(model: str, count: int, seed: int = 2) -> tuple[Array, Array]:
    """Return inputs, float64 of shape (count, FEATURES) or tokens of shape (count, TOKENS), and labels."""
    generator = np.random.default_rng(seed)
    if model == "embedding":
        # the last token never occurs, so that a row of the embedding never has a gradient
        x = generator.integers(0, VOCABULARY - 1, (count, TOKENS))
        return x, (x[:, 0] + x[:, 1]) % CLASSES
    x = generator.normal(size=(count, FEATURES))
    return x, (x[:, :CLASSES] + 0.3 * generator.normal(size=(count, CLASSES))).argmax(1)


def loss_and_gradients(weights: Arrays, x: Array, y: Array) -> tuple[float, Arrays]:
    """Return the mean cross-entropy of a batch, and its gradient by every weight."""
    inputs = weights["embedding"][x].reshape(len(x), -1) if "embedding" in weights else x
    deep = "hidden/kernel" in weights
    hidden = np.tanh(inputs @ weights["hidden/kernel"] + weights["hidden/bias"]) if deep else inputs
    logits = hidden @ weights["last/kernel"] + weights["last/bias"]
    logits = logits - logits.max(1, keepdims=True)
    logarithms = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    loss = -logarithms[np.arange(len(y)), y].mean()

    by_logits = (np.exp(logarithms) - np.eye(CLASSES)[y]) / len(y)
    gradients = {"last/kernel": hidden.T @ by_logits, "last/bias": by_logits.sum(0)}
    if deep:
        before_tanh = (by_logits @ weights["last/kernel"].T) * (1 - hidden**2)
        gradients |= {"hidden/kernel": inputs.T @ before_tanh, "hidden/bias": before_tanh.sum(0)}
    if "embedding" in weights:
        rows = (before_tanh @ weights["hidden/kernel"].T).reshape(*x.shape, WIDTH)
        gradients["embedding"] = np.zeros_like(weights["embedding"])
        np.add.at(gradients["embedding"], x, rows)
    return float(loss), gradients
