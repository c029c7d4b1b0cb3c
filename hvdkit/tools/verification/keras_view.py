"""What the tool needs to know about Keras models, in ``tf`` and ``keras``."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvdkit.keras_common.compat import keras, library, name_of, seed_variables, to_numpy
from hvdkit.keras_common.models import load_arrays, named_arrays
from hvdkit.recipe.declaration import Data, Recipe
from hvdkit.tools.verification.framework_view import View
from hvdkit.tools.verification.reference import Reference
from hvdkit.tools.verification.storage import Arrays, State


class KerasView(View):
    """Models and optimizers of Keras 2 and 3; what differs between the libraries under Keras is in ``library``."""

    def __init__(self, framework: str) -> None:
        self.framework = framework
        self.backend: Any = importlib.import_module(f"hvdkit.{framework}")
        self.library: Any = importlib.import_module(f"hvdkit.tools.verification.keras_{library()}")

    def set_dtype(self, dtype: str) -> None:
        """Build models in this dtype from now on."""
        self.library.prepare(dtype)
        keras().backend.set_floatx(dtype)

    def threads(self) -> int:
        """Return the threads that were set, 0 for as many as the library likes."""
        return int(self.library.threads())

    def set_threads(self, number: int) -> None:
        """Compute with as many threads as the ranks."""
        self.library.set_threads(number)

    def build(self, recipe: Recipe, data: Data | None = None) -> Any:
        """Build the recipe's model."""
        return self.backend.build_model(recipe.pick("model", self.framework), recipe.seed, "", data)

    def device(self, model: Any) -> str:
        """Return the device that this process sees."""
        return str(self.library.device())

    def parameters(self, model: Any) -> Arrays:
        """Return the trained variables."""
        return _read(_named(model.trainable_variables))

    def statistics(self, model: Any) -> Arrays:
        """Return what is not trained, but random states."""
        return _read(_named(self._untrained(model)))

    def slots(self, model: Any, optimizer: Any) -> Arrays:
        """Return the optimizer's variables."""
        return _read(_named(optimizer.variables))

    def rate(self, optimizer: Any) -> float:
        """Return the learning rate."""
        return float(to_numpy(optimizer.learning_rate))

    def named_arrays(self, model: Any) -> Arrays:
        """Return weights and statistics in the layout that all frameworks share."""
        return named_arrays(model)

    def load_arrays(self, model: Any, arrays: Arrays) -> None:
        """Assign them."""
        load_arrays(model, arrays)

    def layers(self, model: Any) -> Iterator[tuple[str, str]]:
        """Yield the name and the class of every layer."""
        for layer in model._flatten_layers():
            yield layer.name, type(layer).__name__

    def freeze(self, model: Any) -> None:
        """Switch dropout and noise off."""
        for layer in model._flatten_layers():
            if "Dropout" in type(layer).__name__ and hasattr(layer, "rate"):
                layer.rate = 0
            elif type(layer).__name__ == "GaussianNoise":
                layer.stddev = 0

    def disturb(self, model: Any, rank: int) -> None:
        """Give a rank other weights and statistics than the root's, for the broadcast to mend."""
        random = np.random.default_rng(rank)
        for variable in [*model.trainable_variables, *self._untrained(model)]:
            value = to_numpy(variable)
            if value.dtype.kind == "f":
                variable.assign(value + 0.1 * random.random(value.shape).astype(value.dtype))

    def random_state(self, model: Any) -> str:
        """Return a digest of the seeds that the model's layers draw from; empty in Keras 2, which hides them."""
        states = [to_numpy(variable).tobytes() for variable in seed_variables(model)]
        return hashlib.sha256(b"".join(states)).hexdigest()[:16] if states else ""

    def is_random(self, model: Any, x: Any) -> bool:
        """Say whether two training passes give different outputs."""
        first, second = (to_numpy(model(x, training=True)) for _ in range(2))
        return not np.array_equal(first, second)

    def neutral(self, x: NDArray[Any]) -> NDArray[Any]:
        """Return inputs as they are."""
        return x

    def record_batches(self, trainer: Any, recorder: Any) -> None:
        """Let the recorder see what ``fit`` gives to the training step, on TensorFlow."""
        if self.framework == "keras" and library() == "tf":
            self.library.record_batches(trainer, recorder)

    def reference(self, recipe: Recipe) -> Reference:
        """Make the reference."""
        reference: Reference = self.library.make_reference(self, recipe)
        return reference

    def state(self, model: Any, optimizer: Any) -> State:
        """Return what is compared."""
        self.library.fetch(model)
        return super().state(model, optimizer)

    def variables(self, model: Any) -> dict[str, Any]:
        """Return the model's variables by the names of :meth:`parameters` and :meth:`statistics`."""
        return {**_named(model.trainable_variables), **_named(self._untrained(model))}

    def _untrained(self, model: Any) -> list[Any]:
        seeds = {id(variable) for variable in seed_variables(model)}
        return [variable for variable in model.non_trainable_variables if id(variable) not in seeds]


def _named(variables: Any) -> dict[str, Any]:
    named: dict[str, Any] = {}
    for variable in variables:
        name = base = name_of(variable)
        number = 1
        while name in named:
            number += 1
            name = f"{base} ({number})"
        named[name] = variable
    return named


def _read(variables: dict[str, Any]) -> Arrays:
    return {name: np.array(to_numpy(variable)) for name, variable in variables.items()}


def make_view(framework: str) -> KerasView:
    """Return what knows Keras models."""
    return KerasView(framework)
