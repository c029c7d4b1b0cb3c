"""Named models in Keras, and their weights as named arrays."""

from hvdkit.keras_common.models import load_arrays, mnist_cnn, named_arrays, resnet34

__all__ = ["load_arrays", "mnist_cnn", "named_arrays", "resnet34"]
