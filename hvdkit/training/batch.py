"""One batch: a pair of inputs and targets, or whatever else the data are made of, and what it counts for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hvdkit.errors import RecipeError
from hvdkit.recipe.trees import is_pair, leaves

if TYPE_CHECKING:
    from hvdkit.recipe.plan import Indices


class _NoTargets:
    def __repr__(self) -> str:
        return "NO_TARGETS"


# stands for the targets of a batch that is no pair
NO_TARGETS: Any = _NoTargets()


@dataclass(frozen=True)
class Batch:
    """Inputs and targets, to be unpacked or indexed as a pair, and what they count for.

    Attributes:
        inputs: What the model is given: a tree of arrays or tensors of one length; all of a batch that is no pair.
        targets: What its outputs are held against: a tree of arrays or tensors of the same length, or ``NO_TARGETS``.
        count: How many samples the batch stands for; 0 where a rank has no sample left and repeats one.
        weight: What the mean loss of the batch counts for: n_local * size * passes / n_global; 1.0 in a full one, and
            in a loop of one's own, whose gradients the reducers weigh.
        last: Whether an optimizer update follows.
        epoch: The epoch, from 0.
        number: The place in its epoch, from 0.
        indices: Which samples these are, int64, where hvdkit draws them; else None.
    """

    inputs: Any
    targets: Any
    count: int
    weight: float = 1.0
    last: bool = True
    epoch: int = 0
    number: int = 0
    indices: Indices | None = None

    @classmethod
    def of(cls, tree: Any, count: int, rows: int | None = None, **place: Any) -> Batch:
        """Return a batch of what a data set gives: a plain tuple of two is a pair, and so is a list of two columns.

        Args:
            tree: The samples.
            count: How many of them count.
            rows: How many there are, which tells two columns from two samples; None if that is not known.
            **place: Other attributes.
        """
        if is_pair(tree) and not hasattr(tree, "_fields") and (isinstance(tree, tuple) or _has_columns(tree, rows)):
            return cls(tree[0], tree[1], count, **place)
        return cls(tree, NO_TARGETS, count, **place)

    @property
    def given(self) -> Any:
        """The batch for a user's loop: itself if it is a pair, else in the structure of the data."""
        return self.inputs if self.targets is NO_TARGETS else self

    def __iter__(self) -> Iterator[Any]:
        return iter((self.inputs, self.targets))

    def __len__(self) -> int:
        return 2

    def __getitem__(self, place: Any) -> Any:
        return (self.inputs, self.targets)[place]


def as_pair(batch: Batch) -> Batch:
    """Return a batch of which a recipe's loss can be taken.

    Raises:
        RecipeError: It is no pair of inputs and targets.
    """
    if batch.targets is not NO_TARGETS:
        return batch
    if is_pair(batch.inputs) and isinstance(batch.inputs, tuple):
        return replace(batch, inputs=batch.inputs[0], targets=batch.inputs[1])
    raise RecipeError(
        f"a recipe's loss takes pairs (inputs, targets), but a batch of these data is {_describe(batch.inputs)}; give "
        "(x, y), for several inputs ((x1, x2), y), or samples that are pairs"
    )


def _has_columns(tree: list[Any], rows: int | None) -> bool:
    lengths = {len(leaf) for leaf in leaves(tree) if getattr(leaf, "ndim", 0) > 0}
    return rows is None or lengths == {rows}


def _describe(tree: Any) -> str:
    if isinstance(tree, dict):
        return "a dict with the keys " + ", ".join(str(key) for key in tree)
    if isinstance(tree, (tuple, list)):
        return f"a {type(tree).__name__} of {len(tree)} parts"
    return f"a single {type(tree).__name__}"
