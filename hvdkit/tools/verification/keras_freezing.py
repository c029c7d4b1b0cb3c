"""Layers of Keras without their random numbers."""

from __future__ import annotations

from typing import Any

# of dropout and noise layers, and of those that drop parts inside, such as LSTM
_RATES = ("rate", "stddev", "dropout", "recurrent_dropout")
_AUGMENTING = ("preprocessing", "augmentation")


def freeze_layer(layer: Any) -> None:
    """Switch off what a layer of Keras's draws at random; what layers of the user's own draw stays."""
    module = type(layer).__module__
    if not module.startswith(("keras.", "tf_keras.")):
        return
    if any(word in module for word in _AUGMENTING) and hasattr(layer, "call"):
        _without_training(layer)
    for name in _RATES:
        # bool is no rate, and a layer's may be a property of its cell's
        if isinstance(getattr(layer, name, None), (int, float)) and not isinstance(getattr(layer, name), bool):
            _set(layer, name)


def _set(layer: Any, name: str) -> None:
    try:
        setattr(layer, name, 0.0)
    except AttributeError:  # a property, of what is frozen itself
        return


def _without_training(layer: Any) -> None:
    call = layer.call

    def evaluating(inputs: Any, *args: Any, training: Any = None, **kwargs: Any) -> Any:
        del training
        return call(inputs, *args, training=False, **kwargs)

    if "training" in call.__code__.co_varnames:
        object.__setattr__(layer, "call", evaluating)
