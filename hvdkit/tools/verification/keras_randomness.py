"""Where the random generators stand that Keras models draw from, and what can be drawn again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hvdkit.job import random_streams
from hvdkit.keras_common.compat import (
    as_tensor,
    global_generator,
    is_keras3,
    keras,
    library,
    seed_variables,
    to_numpy,
)
from hvdkit.recipe.trees import leaves, map_tree
from hvdkit.tools.verification.randomness import FROZEN, HIDDEN, KEPT, NONE, REPLAYED
from hvdkit.tools.verification.storage import Draws


class KerasRandomness:
    """The generators of Python, NumPy and the library, and the variables that layers draw from."""

    def __init__(self, own: Any) -> None:
        self._library = own

    def prepare(self, model: Any) -> None:
        """Let a model draw from what can be set, as far as that is possible."""
        self._library.draw_from_state(model)
        # on JAX, keras.random refuses to draw without a seed
        if is_keras3() and library() != "jax" and global_generator() is None:
            state = random_streams.read()
            keras().random.uniform(())
            random_streams.write(state)

    def variables(self, model: Any) -> dict[str, Any]:
        """Return what layers draw from, what ``keras.random`` does without a seed, and the library's, by name."""
        shared = global_generator()
        seeds = [*seed_variables(model), *([] if shared is None else [shared]), *self._library.state_of(model)]
        kept = self._library.generators_of(model)
        named = {f"seed {place}": variable for place, variable in enumerate(seeds)}
        return named | {f"generator {place}": variable for place, variable in enumerate(kept)}

    def read(self, model: Any) -> Draws:
        """Return where all generators stand."""
        self._library.fetch(model)
        return self.with_others({name: to_numpy(variable) for name, variable in self.variables(model).items()})

    def with_others(self, values: dict[str, Any]) -> Draws:
        """Return where all generators stand, with given values of the variables."""
        copies = {name: np.array(value) for name, value in values.items()}
        return {"python and numpy": random_streams.read(), **self._library.draws(), **copies}

    def saved(self, model: Any) -> list[str]:
        """Return the names of those that checkpoints hold: not what TensorFlow draws from by itself."""
        own = len(seed_variables(model)) + (global_generator() is not None)
        return ["python and numpy", *self._library.draws(), *(f"seed {place}" for place in range(own))]

    def write(self, model: Any, draws: Draws) -> None:
        """Let the generators go on from where they stood."""
        self._library.fetch(model)
        random_streams.write(draws["python and numpy"])
        self._library.set_draws(draws)
        for name, variable in self.variables(model).items():
            variable.assign(draws[name])

    def is_random(self, model: Any, inputs: Any) -> bool:
        """Say whether two training passes give different outputs; the generators stand afterwards where they stood."""
        draws = self.read(model)
        first, second = _outputs(model, inputs), _outputs(model, inputs)
        self.write(model, draws)
        return not _equal(first, second)

    def kind(self, model: Any, inputs: Any, freeze: Callable[[Any], None]) -> str:
        """Return the kind of randomness in a training pass; the model is prepared and frozen afterwards."""
        self.prepare(model)
        random, repeats = self.is_random(model, inputs), self._repeats(model, inputs)
        freeze(model)
        still = self.is_random(model, inputs)
        if not random:
            return NONE
        if repeats:
            return KEPT if still else REPLAYED
        return HIDDEN if still else FROZEN

    def _repeats(self, model: Any, inputs: Any) -> bool:
        """Say whether training passes give the same outputs if the generators stand at one place."""
        draws = self.read(model)
        first = _outputs(model, inputs)
        self.write(model, draws)
        second = _outputs(model, inputs)
        self.write(model, draws)
        return _equal(first, second)


def _outputs(model: Any, inputs: Any) -> list[Any]:
    return list(leaves(map_tree(to_numpy, model(map_tree(as_tensor, inputs), training=True))))


def _equal(first: list[Any], second: list[Any]) -> bool:
    return all(map(np.array_equal, first, second))
