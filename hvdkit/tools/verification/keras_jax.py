"""What the tool needs to know about JAX under Keras models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.experimental import io_callback

from hvdkit.recipe.declaration import Recipe
from hvdkit.tools.verification.keras_ops import OpsReference, tensors
from hvdkit.tools.verification.keras_ops import draw_from_state as draw_from_state
from hvdkit.tools.verification.keras_ops import generators_of as generators_of
from hvdkit.tools.verification.keras_ops import state_of as state_of
from hvdkit.tools.verification.reference import Gradients
from hvdkit.tools.verification.storage import Draws


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
    (place,) = jax.numpy.zeros(()).devices()
    # JAX's own numbers begin at 0, whichever GPUs it may take
    return "cpu" if place.platform == "cpu" else f"gpu:{place.local_hardware_id}"


def fetch(model: Any) -> None:
    """Bring variables up to date: during ``fit`` their values are elsewhere."""
    model.jax_state_sync()


def draws() -> Draws:
    """Return nothing: JAX has no generator of its own."""
    return {}


def set_draws(draws: Draws) -> None:
    """Do nothing."""
    del draws


def observe_steps(model: Any, seeds: list[Any], note: Callable[..., None], which: str) -> None:
    """Call ``note(x, y, weights, values of seeds)`` before each ``train`` or ``test`` step that ``fit`` takes."""
    from keras.utils import unpack_x_y_sample_weight

    step = getattr(model, f"{which}_step")

    def observed(state: Any, data: Any) -> Any:
        places = {id(variable): place for place, variable in enumerate(model.non_trainable_variables)}
        values = [state[1][places[id(variable)]] for variable in seeds]
        io_callback(note, None, *unpack_x_y_sample_weight(data), values, ordered=True)
        return step(state, data)

    object.__setattr__(model, f"{which}_step", observed)
    getattr(model, f"make_{which}_function")(force=True)


class JaxReference(OpsReference):
    """The reference on JAX."""

    def __init__(self, view: Any, recipe: Recipe) -> None:
        super().__init__(view, recipe)
        self._compute = jax.jit(jax.grad(self._weighted, has_aux=True))

    def _weighted(self, trained: Any, others: Any, measured: Any, x: Any, y: Any, weights: Any, weight: Any) -> Any:
        from keras import StatelessScope

        untrained = self.model.non_trainable_variables
        given = [
            *zip(self.model.trainable_variables, trained, strict=True),
            *zip(untrained, others, strict=True),
            # else losses of several outputs count in arrays that the compiled program takes for constants
            *zip(self.model.metrics_variables, measured, strict=True),
        ]
        with StatelessScope(state_mapping=given, collect_losses=True) as scope:
            loss, outputs = self._loss_of((x, y, weights), training=True)
        others = [scope.get_current_value(variable) for variable in untrained]
        return loss * weight, (loss, outputs, others)

    def _train(self, x: Any, y: Any, weights: Any, weight: float) -> tuple[Gradients, Any, Any]:
        trained = [variable.value for variable in self.model.trainable_variables]
        others = [variable.value for variable in self.model.non_trainable_variables]
        measured = [variable.value for variable in self.model.metrics_variables]
        number = np.asarray(weight, trained[0].dtype)
        gradients, (loss, outputs, others) = self._compute(trained, others, measured, *tensors(x, y, weights), number)
        for variable, value in zip(self.model.non_trainable_variables, others, strict=True):
            variable.assign(value)
        return list(gradients), loss, outputs


def make_reference(view: Any, recipe: Recipe) -> JaxReference:
    """Make the reference."""
    return JaxReference(view, recipe)
