"""What the runs have in common: how many updates, of which samples, at which learning rates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from hvdkit.errors import RecipeError
from hvdkit.recipe.declaration import Data, Recipe
from hvdkit.recipe.trees import is_branch

DTYPES = ("float32", "float64")


def check_dtype(dtype: str) -> None:
    """Check that runs can have this dtype.

    Raises:
        RecipeError: They cannot.
    """
    if dtype not in DTYPES:
        raise RecipeError(f"dtype {dtype!r} is unknown; use one of {', '.join(DTYPES)}")


@dataclass(frozen=True)
class Layout:
    """The size of all runs.

    Attributes:
        size: Processes.
        epochs: Epochs, at least two, so that a run passes an epoch's end and can be resumed in its middle.
        steps: Updates per epoch.
        samples: The data are cut to so many; None if they are not arrays.
        dtype: Of weights and inputs.
    """

    size: int
    epochs: int
    steps: int
    samples: int | None
    dtype: str

    @classmethod
    def fit(cls, recipe: Recipe, samples: int | None, size: int, steps: int, dtype: str) -> Layout:
        """Lay out about ``steps`` updates over two epochs or more.

        Arrays are cut so that each epoch ends as it does on all the data, with the same incomplete batch.
        """
        half = math.ceil(steps / 2)
        if recipe.steps_per_epoch is not None or samples is None:
            limit = half if recipe.steps_per_epoch is None else min(half, max(1, recipe.steps_per_epoch // size))
            return cls(size, max(2, math.ceil(steps / limit)), limit, None, dtype)
        whole = global_batch(recipe, size)
        drop = recipe.shard is not None and recipe.shard.uneven == "drop"
        full = samples // whole if drop else math.ceil(samples / whole)
        number = max(1, min(half, full))
        rest = samples % whole
        kept = number * whole + rest if drop else (number - 1) * whole + (rest or whole)
        return cls(size, max(2, math.ceil(steps / number)), number, min(samples, kept), dtype)

    @property
    def updates(self) -> int:
        """Updates in all."""
        return self.epochs * self.steps


def accumulate(recipe: Recipe) -> int:
    """Return the micro-batches per update and process."""
    return recipe.distribute.accumulate if recipe.distribute else 1


def global_batch(recipe: Recipe, size: int) -> int:
    """Return the samples per update over all processes."""
    return recipe.batch_size * size * accumulate(recipe)


def expected_rate(recipe: Recipe, base: float, layout: Layout, step: int) -> float:
    """Return the learning rate that update ``step`` (from 0) should have, by the contract's own arithmetic."""
    settings = recipe.scale_lr
    ratio = layout.size * accumulate(recipe)
    rule = settings.rule if settings else "none"
    factor = float(rule(ratio)) if callable(rule) else {"linear": ratio, "sqrt": math.sqrt(ratio), "none": 1.0}[rule]
    target = base * factor
    rising = round(settings.warmup_epochs * layout.steps) if settings else 0
    if step < rising:
        return base + (target - base) * (step + 1) / rising
    return target * (float(recipe.schedule(step / layout.steps)) if recipe.schedule else 1.0)


def load_data(recipe: Recipe, framework: str) -> Data:
    """Return the recipe's data, all of them.

    Raises:
        RecipeError: They are trees of arrays, or the recipe has a scheduler, which verify does not follow yet.
    """
    if recipe.scheduler is not None:
        raise RecipeError("verify follows Recipe.schedule, but not yet Recipe.scheduler; verify the recipe without it")
    source = recipe.pick("data", framework)
    data: Data = source if isinstance(source, Data) else source()
    if isinstance(data.train, tuple) and any(is_branch(view) for view in data.train):
        raise RecipeError("verify follows one array of inputs and one of targets, but the recipe's data are trees")
    return data


def is_neutral(data: Any) -> bool:
    """Say whether data are a pair of arrays."""
    return isinstance(data, tuple) and len(data) == 2 and all(isinstance(part, np.ndarray) for part in data)


def cut(data: Data, layout: Layout, whole: int) -> Data:
    """Return the data of a run: fewer samples, of the dtype that is verified."""
    train, validation = data.train, data.validation
    if is_neutral(train):
        train = _cast(train, layout.samples, layout.dtype)
    if is_neutral(validation):
        few = 2 * whole + len(validation[0]) % whole
        validation = _cast(validation, few, layout.dtype)
    return Data(train, validation, data.classes)


def _cast(pair: Any, samples: int | None, dtype: str) -> Any:
    parts = [part[:samples] for part in pair]
    if dtype == "float64":
        parts = [part.astype(np.float64) if part.dtype.kind == "f" else part for part in parts]
    return tuple(parts)
