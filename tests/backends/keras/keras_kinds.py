"""The kinds of Keras that tests run on: parameters of the fixture ``ranks``."""

from __future__ import annotations

from ranks import on

ON_TENSORFLOW = on("keras", engines=("mpi",))  # Keras 3, or Keras 2 where TensorFlow 2.15 is installed
ON_HOROVOD = on("keras", engines=("horovod",))
ON_TORCH = on("keras", engines=("torch",), env={"KERAS_BACKEND": "torch"})
ON_JAX = on("keras", engines=("mpi",), env={"KERAS_BACKEND": "jax"})
EVERYWHERE = [*ON_TENSORFLOW, *ON_TORCH, *ON_JAX]
