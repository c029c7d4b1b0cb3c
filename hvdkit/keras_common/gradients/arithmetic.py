"""The arithmetic of gradients in the library that Keras runs on."""

from __future__ import annotations

import functools
from typing import Any

from hvdkit.keras_common.compat import library


@functools.cache
def gradient_math() -> Any:
    """Return the module of tensor arithmetic for the library that Keras runs on."""
    if library() == "tf":
        from hvdkit.keras_common.gradients import tf_gradients

        return tf_gradients
    from hvdkit.keras_common.gradients import keras_gradients

    return keras_gradients
