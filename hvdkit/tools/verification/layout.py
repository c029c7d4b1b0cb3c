"""What the runs have in common: how many updates, of which samples, at which learning rates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hvdkit.errors import RecipeError
from hvdkit.recipe.declaration import Data, Recipe
from hvdkit.recipe.trees import is_arrays, is_pair, of_arrays, samples_of

if TYPE_CHECKING:
    from hvdkit.tools.verification.framework_view import View

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
        epochs: Epochs, at least three, so that a run can be resumed from its first file and from a later one.
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
    def fit(
        cls, recipe: Recipe, samples: int | None, size: int, steps: int, dtype: str, whole_data: bool = False
    ) -> Layout:
        """Lay out about ``steps`` updates over three epochs or more, so short that runs which go on are short.

        Data are cut so that each epoch ends as it does on all of them, with the same incomplete batch, unless they are
        a stream, the recipe has ``steps_per_epoch``, or ``whole_data`` says that they cannot be.
        """
        short = min(math.ceil(steps / 3), math.isqrt(steps))
        whole = global_batch(recipe, size)
        drop = recipe.shard is not None and recipe.shard.uneven == "drop"
        full = short if samples is None else samples // whole if drop else math.ceil(samples / whole)
        if recipe.steps_per_epoch is not None or samples is None or whole_data:
            asked = short if recipe.steps_per_epoch is None else recipe.steps_per_epoch // size
            limit = max(1, min(short, asked, full))
            return cls(size, max(3, math.ceil(steps / limit)), limit, None, dtype)
        number = max(1, min(short, full))
        rest = samples % whole
        kept = number * whole + rest if drop else (number - 1) * whole + (rest or whole)
        return cls(size, max(3, math.ceil(steps / number)), number, min(samples, kept), dtype)

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


def expected_order(known: dict[str, Any], samples: int, epoch: int) -> NDArray[np.int64]:
    """Return the order of all samples in an epoch (from 0), by the contract's own arithmetic."""
    if not known["shuffle"]:
        return np.arange(samples)
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([known["seed"], epoch]))).permutation(samples)


def load_data(recipe: Recipe, framework: str) -> Data:
    """Return the recipe's data, all of them."""
    source = recipe.pick("data", framework)
    data: Data = source if isinstance(source, Data) else source()
    return data


def is_neutral(data: Any) -> bool:
    """Say whether data are arrays: a pair of inputs and targets, each one array or a tree of them."""
    return is_pair(data) and is_arrays(data)


def cut(data: Data, layout: Layout, whole: int, view: View | None = None) -> Data:
    """Return the data of a run: fewer samples, of the dtype that is verified.

    Args:
        data: All of them.
        layout: How many are trained on.
        whole: Samples of a global batch; two of them and what is left at the end are validated on.
        view: Takes the first samples of data of a framework's own.
    """
    known = None if data.validation is None else _samples(data.validation, view)
    few = None if known is None else 2 * whole + known % whole

    def part(given: Any, samples: int | None) -> Any:
        if is_neutral(given):
            return _cast(given, samples, layout.dtype)
        return given if given is None or view is None else view.part(given, samples, layout.dtype)

    return Data(part(data.train, layout.samples), part(data.validation, few), data.classes)


def _samples(data: Any, view: View | None) -> int | None:
    return samples_of(data) if is_neutral(data) else None if view is None else view.given(data).samples


def _cast(pair: Any, samples: int | None, dtype: str) -> Any:
    def few(array: Any) -> Any:
        return as_dtype(array[:samples], dtype)

    return of_arrays(few, pair)


def as_dtype(array: Any, dtype: str) -> Any:
    """Return floating-point numbers in float64 if that is verified, others as they are."""
    kind = str(getattr(array, "dtype", ""))
    if dtype != "float64" or "float" not in kind:
        return array
    return array.astype(np.float64) if hasattr(array, "astype") else array.double()
