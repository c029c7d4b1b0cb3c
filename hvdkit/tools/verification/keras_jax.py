"""What the tool needs to know about JAX under Keras models."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from hvdkit.recipe.declaration import Recipe
from hvdkit.tools.verification.keras_ops import OpsReference
from hvdkit.tools.verification.reference import Gradients


def threads() -> int:
    """Return 0: JAX takes as many threads as it likes."""
    return 0


def set_threads(number: int) -> None:
    """Do nothing: JAX has no setting for it."""
    del number


def prepare(dtype: str) -> None:
    """Allow this dtype; JAX makes float32 of float64 unless it is told."""
    if dtype == "float64":
        jax.config.update("jax_enable_x64", True)


def device() -> str:
    """Return where JAX computes."""
    place = jax.devices()[0]
    return "cpu" if place.platform == "cpu" else f"gpu:{place.id}"


def fetch(model: Any) -> None:
    """Bring variables up to date: during ``fit`` their values are elsewhere."""
    model.jax_state_sync()


class JaxReference(OpsReference):
    """The reference on JAX."""

    def __init__(self, view: Any, recipe: Recipe) -> None:
        super().__init__(view, recipe)
        self._compute = jax.jit(jax.grad(self._weighted, has_aux=True))

    def _weighted(self, trained: Any, others: Any, x: Any, y: Any, weight: Any) -> Any:
        outputs, others, losses = self.model.stateless_call(trained, others, x, training=True, return_losses=True)
        values = self._values(outputs, y, losses)
        return values["loss"] * weight, (values, others)

    def _train(self, x: Any, y: Any, weight: float) -> tuple[Gradients, dict[str, Any]]:
        trained = [variable.value for variable in self.model.trainable_variables]
        others = [variable.value for variable in self.model.non_trainable_variables]
        number = np.asarray(weight, trained[0].dtype)
        gradients, (values, others) = self._compute(trained, others, x, y, number)
        for variable, value in zip(self.model.non_trainable_variables, others, strict=True):
            variable.assign(value)
        return list(gradients), values


def make_reference(view: Any, recipe: Recipe) -> JaxReference:
    """Make the reference."""
    return JaxReference(view, recipe)
