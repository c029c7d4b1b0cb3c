"""What the tool needs to know about Keras models, in ``tf`` and ``keras``."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvdkit.errors import RecipeError
from hvdkit.keras_common.compat import keras, library, name_of, schedule_of, seed_variables, to_numpy
from hvdkit.keras_common.models import load_arrays, named_arrays
from hvdkit.keras_common.trained import has_own_step
from hvdkit.recipe.declaration import Data, Recipe
from hvdkit.recipe.trees import leaves, map_tree
from hvdkit.tools.verification import keras_data, keras_given
from hvdkit.tools.verification.framework_view import View
from hvdkit.tools.verification.given import Given
from hvdkit.tools.verification.keras_freezing import freeze_layer
from hvdkit.tools.verification.keras_measures import Weighted, split_targets
from hvdkit.tools.verification.keras_randomness import KerasRandomness
from hvdkit.tools.verification.layout import Layout
from hvdkit.tools.verification.reference import Reference
from hvdkit.tools.verification.storage import Arrays, Draws, State


class KerasView(View):
    """Models and optimizers of Keras 2 and 3; what differs between the libraries under Keras is in ``library``."""

    def __init__(self, framework: str) -> None:
        self.framework = framework
        self.backend: Any = importlib.import_module(f"hvdkit.{framework}")
        self.library: Any = importlib.import_module(f"hvdkit.tools.verification.keras_{library()}")
        self._random = KerasRandomness(self.library)

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
        """Build the recipe's model.

        Raises:
            RecipeError: ``fit`` trains it by a step of its own, which one process cannot take for all ranks.
        """
        model = self.backend.build_model(recipe.pick("model", self.framework), recipe.seed, "", data)
        if self.framework == "keras" and has_own_step(model):
            raise RecipeError(
                f"verify takes gradients of Recipe.loss, but {type(model).__name__} has a train_step of its own; put "
                "that loss into Recipe.loss or add_loss, or verify the recipe in tf"
            )
        self._random.prepare(model)
        return model

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

    def rates(self, optimizer: Any) -> list[float]:
        """Return the learning rate, of which Keras has one: with a schedule object, that of the latest update."""
        schedule = schedule_of(optimizer)
        if schedule is None:
            return [float(to_numpy(optimizer.learning_rate))]
        return [float(to_numpy(schedule(max(int(to_numpy(optimizer.iterations)) - 1, 0))))]

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
        """Switch dropout, noise and augmentation off."""
        for layer in model._flatten_layers():
            freeze_layer(layer)

    def disturb(self, model: Any, rank: int) -> None:
        """Give a rank other weights and statistics than the root's, for the broadcast to mend."""
        random = np.random.default_rng(rank)
        for variable in [*model.trainable_variables, *self._untrained(model)]:
            value = to_numpy(variable)
            if value.dtype.kind == "f":
                variable.assign(value + 0.1 * random.random(value.shape).astype(value.dtype))

    def draws(self, model: Any) -> Draws:
        """Return where the generators stand that a training pass may draw from and that can be set."""
        return self._random.read(model)

    def set_draws(self, model: Any, draws: Draws) -> None:
        """Let the generators go on from where they stood."""
        self._random.write(model, draws)

    def saved_generators(self, model: Any) -> list[str]:
        """Return the names of the generators whose places checkpoints hold."""
        return self._random.saved(model)

    def is_random(self, model: Any, inputs: Any) -> bool:
        """Say whether a training pass draws random numbers."""
        return self._random.is_random(model, inputs)

    def randomness(self, recipe: Recipe, model: Any, batch: Any) -> str:
        """Return the kind of randomness in a training pass; called last, since it changes the model."""
        return self._random.kind(model, batch[0], self.freeze)

    def given(self, data: Any) -> Given:
        """Say what data of the user's own are."""
        return keras_given.describe(data)

    def sides(self, data: Any) -> tuple[Any, Any]:
        """Return inputs and targets of arrays, with the weights of samples."""
        return keras_given.sides(data)

    def read_given(
        self, anew: Callable[..., Any], found: Given, recipe: Recipe, layout: Layout, train: bool
    ) -> dict[str, Any]:
        """Read data that are known by what they give alone."""
        return keras_given.Reading(self, anew, found, recipe, layout, train).facts()

    def part(self, data: Any, samples: int | None, dtype: str) -> Any:
        """Return the first samples of data of the user's own."""
        return keras_data.part(data, samples, dtype)

    def array(self, part: Any) -> NDArray[Any]:
        """Return a tensor or array of a batch as NumPy's."""
        return np.asarray(part.detach().cpu() if hasattr(part, "detach") else part)

    def neutral(self, x: NDArray[Any]) -> NDArray[Any]:
        """Return inputs as they are."""
        return x

    def record_batches(self, trainer: Any, recorder: Any) -> None:
        """Let the recorder see what ``fit`` gives to the training step, and where random generators stand then."""
        if self.framework != "keras":
            return
        recorder.sees_batches = False
        variables = self._random.variables(trainer.model)
        for which, noting in (("train", self._noting), ("test", self._noting_evaluation)):
            note = noting(trainer, recorder, list(variables))
            self.library.observe_steps(trainer.model, list(variables.values()), note, which)

    def _noting_evaluation(self, trainer: Any, recorder: Any, names: list[str]) -> Callable[..., None]:
        """Return what notes a batch that ``fit`` evaluates."""

        def note(x: Any, y: Any, weights: Any, seeds: list[Any]) -> None:
            inputs, targets = self._taken(x, y, weights)
            count = len(next(leaves(inputs)))
            recorder.note_evaluated(inputs, targets, count, trainer, self._draws_of(names, seeds))

        return note

    def _taken(self, x: Any, y: Any, weights: Any) -> tuple[Any, Any]:
        """Return inputs and targets of a step as NumPy arrays."""
        return keras_given.sides([map_tree(self.array, tree) for tree in (x, y, weights) if tree is not None])

    def _draws_of(self, names: list[str], seeds: list[Any]) -> Draws:
        return self._random.with_others(dict(zip(names, map(self.array, seeds), strict=True)))

    def _noting(self, trainer: Any, recorder: Any, names: list[str]) -> Callable[..., None]:
        """Return what notes a pass of ``fit``."""
        done, first = itertools.count(), trainer.global_step
        weighted = trainer.batches.weighted and not trainer.batches.takes_class_weight
        announced = keras_data.Announced(trainer.batches)

        def note(x: Any, y: Any, weights: Any, seeds: list[Any]) -> None:
            # on JAX it is called when the step that follows may be counted already
            update = first + next(done) // trainer.accumulate
            x, targets = self._taken(x, y, weights)
            y, weights = split_targets(targets)
            x, y = announced.of(x, y)
            given = [] if weights is None else list(leaves(weights))
            count = 0 if given and all(np.signbit(part).all() for part in given) else len(next(leaves(x)))
            targets = Weighted(y, weights) if weighted else y
            epoch, draws = update // trainer.steps_per_epoch, self._draws_of(names, seeds)
            recorder.note_batch(x, targets, count, None, update + 1, epoch, trainer.model, draws=draws)

        return note

    def begin_anew(self) -> None:
        """Count layers from the first on, as a new process does."""
        keras().backend.clear_session()

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
