"""The reference for Keras models; what computes gradients is in one module for each library that Keras runs on."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np

from hvdkit.keras_common.compat import as_tensor, keras, mask_of, schedule_of, set_mask, to_numpy
from hvdkit.keras_common.models import build_loss
from hvdkit.recipe.declaration import Recipe
from hvdkit.recipe.trees import is_branch, leaves, map_tree
from hvdkit.tools.verification.held_metrics import functions
from hvdkit.tools.verification.keras_measures import CompiledMeasures, Measures, PlainMeasures, split_targets
from hvdkit.tools.verification.layout import Layout
from hvdkit.tools.verification.reference import Gradients, Reference, rows
from hvdkit.tools.verification.storage import Arrays, Micro

if TYPE_CHECKING:
    from hvdkit.tools.verification.keras_view import KerasView


class KerasReference(Reference):
    """The reference in Keras: gradients by the library's own means, and the optimizer as it is."""

    view: KerasView
    averages_by_divisors = True

    def __init__(self, view: KerasView, recipe: Recipe) -> None:
        # layers are named as in the ranks, whose model is the first of their process
        keras().backend.clear_session()
        model = view.build(recipe)
        optimizer, base = view.backend.build_optimizer(recipe.pick("optimizer", view.framework), model)
        self.schedule = schedule_of(optimizer)
        if self.schedule is not None:
            # such an optimizer refuses to take a rate
            optimizer = type(optimizer).from_config({**optimizer.get_config(), "learning_rate": base})
        super().__init__(view, recipe, model, optimizer, base)
        loss = build_loss(recipe.pick("loss", view.framework))
        kind = CompiledMeasures if view.framework == "keras" else PlainMeasures
        self._measures: Measures = kind(model, self.optimizer, loss, recipe.metrics)
        if model.built:
            self.optimizer.build(model.trainable_variables)

    def due_rates(self, layout: Layout, step: int) -> list[float]:
        """Return the rate that an update should have; a schedule object's is scaled as a number would be."""
        factor = 1.0 if self.schedule is None else float(to_numpy(self.schedule(step))) / self.base
        return [rate * factor for rate in super().due_rates(layout, step)]

    def prime(self, inputs: Any, targets: Any) -> None:
        """Build what is built by its first batch, and compile."""
        if not self.model.built:
            self.model(inputs)
            self.optimizer.build(self.model.trainable_variables)
        self._measures.prepare(self.view, inputs, *split_targets(targets))

    def gradients(self, inputs: Any, targets: Any, weight: float, count: float) -> Gradients:
        """Return the gradients of ``weight`` times the mean loss, and note loss and metrics."""
        y, weights = split_targets(targets)
        gradients, loss, outputs = self._train(inputs, y, weights, weight)
        self._note(loss, outputs, y, weights, count)
        return gradients

    def size_of(self, micro: Micro) -> float:
        """Return what the mean loss of a micro-batch stands for."""
        if not micro.count or not self._measures.varies:
            return micro.count
        inputs, targets, _ = micro.load()
        return self._size(inputs, *split_targets(targets), micro.count)

    def _size(self, x: Any, y: Any, weights: Any, count: int) -> float:
        return self._measures.size(lambda: self.outputs(x), y, weights, count)

    def outputs(self, inputs: Any) -> Any:
        """Return what the model makes of NumPy inputs, without training."""
        return self.model(map_tree(as_tensor, inputs), training=False)

    def measures_of(self, outputs: Any, targets: Any) -> dict[str, float]:
        """Return the loss of outputs and NumPy targets, and metrics that are functions."""
        y, weights = split_targets(targets)
        y, weights = (None if tree is None else map_tree(as_tensor, tree) for tree in (y, weights))
        measured = functions(self.recipe.metrics).items()
        means = {name: float(np.mean(to_numpy(measure(y, outputs)), dtype=np.float64)) for name, measure in measured}
        loss = to_numpy(self._measures.loss(None, y, weights, outputs))
        return {"loss": float(loss), **means}

    def part_of(self, outputs: Any, start: int, stop: int) -> Any:
        """Return a range of what the model made, with that of its mask."""
        part = rows(outputs, start, stop)
        mask = None if is_branch(outputs) else mask_of(outputs)
        if mask is not None:
            set_mask(part, mask[start:stop])
        return part

    def divisor(self, outputs: Any, targets: Any, count: int) -> float:
        """Return what the mean loss of a batch divides by."""
        return self._measures.size(lambda: outputs, *split_targets(targets), count)

    def apply(self, gradients: Gradients, rate: float) -> None:
        """Clip the gradients and update the weights."""
        self._set_rate(rate)
        pairs = zip(gradients, self.model.trainable_variables, strict=True)
        present = [(gradient, variable) for gradient, variable in pairs if gradient is not None]
        self._update([gradient for gradient, _ in present], [variable for _, variable in present])

    def _set_rate(self, rate: float) -> None:
        """Set the rate; Keras's momentum has the old one folded in (Goyal et al., 2017, remark 2)."""
        old = self.view.rates(self.optimizer)[0]
        self.optimizer.learning_rate = rate
        new = self.view.rates(self.optimizer)[0]
        # a schedule object of Keras's leaves the momentum as it is
        if self.schedule is None and type(self.optimizer).__name__ == "SGD" and old and new != old:
            for velocity in getattr(self.optimizer, "momentums", None) or ():
                velocity.assign(velocity * (new / old))

    def evaluate(self, inputs: Any, targets: Any) -> None:
        """Note loss and metrics of neutral arrays, without training; nothing where that draws random numbers."""
        targets, weights = split_targets(targets)
        samples = len(next(leaves(targets)))
        for start in range(0, samples, self.recipe.batch_size):
            stop = min(start + self.recipe.batch_size, samples)
            x, y, w = (
                None if tree is None else map_tree(np.asarray, rows(tree, start, stop))
                for tree in (inputs, targets, weights)
            )
            loss, outputs = self._test(x, y, w)
            if start == 0 and not _same(outputs, self._test(x, y, w)[1]):
                return
            self._note(loss, outputs, y, w, self._size(x, y, w, stop - start))

    def _note(self, loss: Any, outputs: Any, y: Any, weights: Any, count: float) -> None:
        self.note("loss", float(to_numpy(loss)), count)
        for name, value in self._measures.measure(outputs, y, weights, count).items():
            self.note(name, value, count)

    def _means(self) -> dict[str, float]:
        return super()._means() | self._measures.results()

    def statistics(self) -> Arrays:
        """Return what is not trained."""
        return self.view.statistics(self.model)

    def write(self, arrays: Arrays) -> None:
        """Assign variables by name."""
        variables = self.view.variables(self.model)
        for name, value in arrays.items():
            variables[name].assign(value)

    @property
    def _clip_norm(self) -> float | None:
        return self.recipe.distribute.clip_norm if self.recipe.distribute else None

    @abstractmethod
    def _train(self, x: Any, y: Any, weights: Any, weight: float) -> tuple[Gradients, Any, Any]:
        """Return the gradients of ``weight`` times the mean loss, None for variables without, the loss, and outputs.

        Args:
            x: A tree of NumPy arrays.
            y: The same.
            weights: Of the samples; None where the recipe's data bring none.
            weight: What the mean loss counts for.
        """

    @abstractmethod
    def _test(self, x: Any, y: Any, weights: Any) -> tuple[Any, Any]:
        """Return loss and outputs without training."""

    @abstractmethod
    def _update(self, gradients: Gradients, variables: list[Any]) -> None:
        """Clip gradients to the recipe's norm and let the optimizer update the variables."""


def _same(outputs: Any, others: Any) -> bool:
    pairs = zip(leaves(outputs), leaves(others), strict=True)
    return all(np.array_equal(to_numpy(first), to_numpy(second)) for first, second in pairs)
