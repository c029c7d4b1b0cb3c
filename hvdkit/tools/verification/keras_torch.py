"""What the tool needs to know about torch under Keras models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from hvdkit.recipe.declaration import Recipe
from hvdkit.tools.verification.keras_ops import OpsReference, tensors
from hvdkit.tools.verification.keras_ops import draw_from_state as draw_from_state
from hvdkit.tools.verification.keras_ops import generators_of as generators_of
from hvdkit.tools.verification.keras_ops import state_of as state_of
from hvdkit.tools.verification.reference import Gradients
from hvdkit.tools.verification.storage import Draws


def threads() -> int:
    """Return the CPU threads of this process."""
    return int(torch.get_num_threads())


def set_threads(number: int) -> None:
    """Compute as the ranks do, whose sums depend on it."""
    torch.set_num_threads(number)


def prepare(dtype: str) -> None:
    """Allow this dtype; torch has them all."""
    del dtype


def device() -> str:
    """Return where Keras puts tensors."""
    return f"cuda:{torch.cuda.current_device()}" if torch.cuda.is_available() else "cpu"


def fetch(model: Any) -> None:
    """Bring variables up to date during ``fit``; here they always are."""
    del model


def draws() -> Draws:
    """Return where the generators of the library itself stand."""
    found = {"torch": torch.get_rng_state().numpy().copy()}
    if torch.cuda.is_available():
        found["cuda"] = torch.cuda.get_rng_state().numpy().copy()
    return found


def set_draws(draws: Draws) -> None:
    """Let them go on from where they stood."""
    torch.set_rng_state(torch.from_numpy(draws["torch"]))
    if "cuda" in draws:
        torch.cuda.set_rng_state(torch.from_numpy(draws["cuda"]))


def observe_steps(model: Any, seeds: list[Any], note: Callable[..., None], which: str) -> None:
    """Call ``note(x, y, weights, values of seeds)`` before each ``train`` or ``test`` step that ``fit`` takes."""
    from keras.utils import unpack_x_y_sample_weight

    step = getattr(model, f"{which}_step")

    def observed(data: Any) -> Any:
        note(*unpack_x_y_sample_weight(data), seeds)
        return step(data)

    object.__setattr__(model, f"{which}_step", observed)


class TorchReference(OpsReference):
    """The reference on torch."""

    def _train(self, x: Any, y: Any, weights: Any, weight: float) -> tuple[Gradients, Any, Any]:
        variables = self.model.trainable_variables
        for variable in variables:
            variable.value.grad = None
        loss, outputs = self._loss_of(tensors(x, y, weights), training=True)
        (loss * weight).backward()
        found = [variable.value.grad for variable in variables]
        return [None if gradient is None else gradient.detach().clone() for gradient in found], loss, outputs

    def _note(self, *measured: Any) -> None:
        with torch.no_grad():
            super()._note(*measured)

    def _test(self, x: Any, y: Any, weights: Any) -> tuple[Any, Any]:
        with torch.no_grad():
            return super()._test(x, y, weights)

    def _update(self, gradients: Gradients, variables: list[Any]) -> None:
        with torch.no_grad():
            super()._update(gradients, variables)


def make_reference(view: Any, recipe: Recipe) -> TorchReference:
    """Make the reference."""
    return TorchReference(view, recipe)
