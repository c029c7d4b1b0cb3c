"""The reference for Keras models; what computes gradients is in one module for each library that Keras runs on."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np

from hvdkit.keras_common.compat import keras
from hvdkit.keras_common.models import build_loss
from hvdkit.recipe.declaration import Recipe
from hvdkit.tools.verification.reference import Gradients, Reference
from hvdkit.tools.verification.storage import Arrays

if TYPE_CHECKING:
    from hvdkit.tools.verification.keras_view import KerasView


class KerasReference(Reference):
    """The reference in Keras: gradients by the library's own means, and the optimizer as it is."""

    def __init__(self, view: KerasView, recipe: Recipe) -> None:
        self._view = view
        # layers are named as in the ranks, whose model is the first of their process
        keras().backend.clear_session()
        model = view.build(recipe)
        super().__init__(recipe, model, *view.backend.build_optimizer(recipe.pick("optimizer", view.framework), model))
        self._loss = build_loss(recipe.pick("loss", view.framework))
        if model.built:
            self.optimizer.build(model.trainable_variables)

    def prime(self, x: Any) -> None:
        """Build what is built by its first batch."""
        if not self.model.built:
            self.model(x)
            self.optimizer.build(self.model.trainable_variables)

    def gradients(self, arrays: Arrays, weight: float, count: int) -> Gradients:
        """Return the gradients of ``weight`` times the mean loss, and note loss and metrics."""
        gradients, values = self._train(arrays["x"], arrays["y"], weight)
        self._note(values, count)
        return gradients

    def apply(self, gradients: Gradients, rate: float) -> None:
        """Clip the gradients and update the weights."""
        self._set_rate(rate)
        pairs = zip(gradients, self.model.trainable_variables, strict=True)
        present = [(gradient, variable) for gradient, variable in pairs if gradient is not None]
        self._update([gradient for gradient, _ in present], [variable for _, variable in present])

    def _set_rate(self, rate: float) -> None:
        """Set the rate; Keras's momentum has the old one folded in (Goyal et al., 2017, remark 2)."""
        old = self._view.rate(self.optimizer)
        self.optimizer.learning_rate = rate
        new = self._view.rate(self.optimizer)
        if type(self.optimizer).__name__ == "SGD" and old and new != old:
            for velocity in getattr(self.optimizer, "momentums", None) or ():
                velocity.assign(velocity * (new / old))

    def evaluate(self, x: Any, y: Any) -> None:
        """Note loss and metrics of neutral arrays, without training."""
        for start in range(0, len(x), self.recipe.batch_size):
            part = slice(start, start + self.recipe.batch_size)
            self._note(self._test(np.asarray(x[part]), np.asarray(y[part])), len(x[part]))

    def _note(self, values: dict[str, Any], count: int) -> None:
        for name, value in values.items():
            self.note(name, float(value), count)

    def statistics(self) -> Arrays:
        """Return what is not trained."""
        return self._view.statistics(self.model)

    def write(self, arrays: Arrays) -> None:
        """Assign variables by name."""
        variables = self._view.variables(self.model)
        for name, value in arrays.items():
            variables[name].assign(value)

    @property
    def _clip_norm(self) -> float | None:
        return self.recipe.distribute.clip_norm if self.recipe.distribute else None

    @abstractmethod
    def _train(self, x: Any, y: Any, weight: float) -> tuple[Gradients, dict[str, Any]]:
        """Return the gradients of ``weight`` times the mean loss, None for variables without, and loss and metrics."""

    @abstractmethod
    def _test(self, x: Any, y: Any) -> dict[str, Any]:
        """Return loss and metrics without training."""

    @abstractmethod
    def _update(self, gradients: Gradients, variables: list[Any]) -> None:
        """Clip gradients to the recipe's norm and let the optimizer update the variables."""
