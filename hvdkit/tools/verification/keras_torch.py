"""What the tool needs to know about torch under Keras models."""

from __future__ import annotations

from typing import Any

import torch

from hvdkit.recipe.declaration import Recipe
from hvdkit.tools.verification.keras_ops import OpsReference
from hvdkit.tools.verification.reference import Gradients


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
    return "cuda:0" if torch.cuda.is_available() else "cpu"


def fetch(model: Any) -> None:
    """Bring variables up to date during ``fit``; here they always are."""
    del model


class TorchReference(OpsReference):
    """The reference on torch."""

    def _train(self, x: Any, y: Any, weight: float) -> tuple[Gradients, dict[str, Any]]:
        variables = self.model.trainable_variables
        for variable in variables:
            variable.value.grad = None
        values = self._values(self.model(x, training=True), y, self.model.losses)
        (values["loss"] * weight).backward()
        found = [variable.value.grad for variable in variables]
        return [None if gradient is None else gradient.detach().clone() for gradient in found], values

    def _test(self, x: Any, y: Any) -> dict[str, Any]:
        with torch.no_grad():
            return super()._test(x, y)

    def _update(self, gradients: Gradients, variables: list[Any]) -> None:
        with torch.no_grad():
            super()._update(gradients, variables)


def make_reference(view: Any, recipe: Recipe) -> TorchReference:
    """Make the reference."""
    return TorchReference(view, recipe)
