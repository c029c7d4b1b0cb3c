"""One rank's batches of data that are evaluated, not trained on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hvdkit.errors import RecipeError
from hvdkit.recipe.evaluation import EvaluationPlan
from hvdkit.recipe.plan import MicroBatch
from hvdkit.recipe.trees import leaves
from hvdkit.training.batch import as_pair
from hvdkit.training.batches import Batch, Source, pairs

if TYPE_CHECKING:
    from hvdkit.recipe.plan import Indices


_in_loop: ContextVar[bool] = ContextVar("a loop over batches to evaluate runs", default=False)


def in_evaluation_loop() -> bool:
    """Say whether a loop over batches of ``shard(train=False)`` is running here."""
    return _in_loop.get()


class Evaluation:
    """What every ``shard(train=False)`` returns: this rank's samples, each once and in the order of the data.

    Attributes:
        samples: Those of all ranks; None where the data do not know their length.
        dropped: None are.
        targets: Those of all ranks where they are arrays; else None.
    """

    samples: int | None
    targets: Any
    dropped = 0

    def __len__(self) -> int:
        raise NotImplementedError

    @property
    def steps(self) -> int:
        """This rank's batches."""
        return len(self)

    def set_epoch(self, epoch: int) -> None:
        """Do nothing: the order is the same every time."""


class Loop(Evaluation, ABC):
    """Batches for a loop.

    Ranks may have different numbers of batches, one of them none at all: nothing that all ranks must do together may
    stand in the loop.

    Attributes:
        count: The samples of the current batch.
        weight: Always 1.0.
        last: Always True.
    """

    def __init__(self) -> None:
        self.count, self.weight, self.last = 0, 1.0, True

    @abstractmethod
    def counted(self) -> Iterator[Batch]:
        """Yield the batches."""

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches; those that are no pairs in the structure of the data."""
        try:
            for batch in self.counted():
                self.count = batch.count
                _in_loop.set(True)
                yield batch.given
        finally:
            _in_loop.set(False)


class EvaluationBatches(Loop):
    """This rank's samples, each once and in the order of the data; re-iterable.

    Attributes:
        source: Where the samples come from.
        plan: How they are laid out over ranks.
    """

    def __init__(
        self, source: Source, plan: EvaluationPlan, rank: int, order: Callable[[], Indices] | None = None
    ) -> None:
        super().__init__()
        self.source, self.plan, self.rank = source, plan, rank
        self.samples, self.targets = plan.samples, source.targets
        self._order = order

    def parts(self) -> list[MicroBatch]:
        """Return what each batch is made of."""
        parts = list(self.plan.micro_batches(self.rank))
        if self._order is None:
            return parts
        order = self._order()
        return [replace(part, indices=order[part.indices]) for part in parts]

    def __len__(self) -> int:
        return self.plan.batches(self.rank)

    def counted(self) -> Iterator[Batch]:
        """Yield the batches."""
        parts = self.parts()
        for number, (part, tree) in enumerate(zip(parts, self.source.load(parts), strict=True)):
            yield Batch.of(tree, part.count, number=number, indices=part.indices if self.source.drawn else None)


class EvaluationStream(Loop):
    """This rank's samples of data that may not know their length, each once; re-iterable.

    Args:
        read: Returns this rank's batches from the first on: trees of arrays or tensors.
        samples: Those of all ranks; None where the data do not know their length.
        length: Returns the number of this rank's batches, if that is known.
    """

    targets: Any = None

    def __init__(self, read: Callable[[], Iterable[Any]], samples: int | None, length: Callable[[], int]) -> None:
        super().__init__()
        self._read, self.samples, self._length = read, samples, length

    def __len__(self) -> int:
        return self._length()

    def counted(self) -> Iterator[Batch]:
        """Yield the batches."""
        for number, tree in enumerate(self._read()):
            yield Batch.of(tree, int(next(leaves(tree)).shape[0]), number=number)


def evaluation_pairs(batches: Any) -> Iterator[Batch]:
    """Yield batches of ``shard(train=False)`` for a loss or metrics of outputs and targets.

    Raises:
        RecipeError: A batch is no pair.
    """
    if hasattr(batches, "counted"):
        return pairs(batches)
    return (as_pair(Batch.of(tree, int(next(leaves(tree)).shape[0]))) for tree in batches)


def evaluation_of(data: Any, shard: Callable[[], Any]) -> Any:
    """Return batches to evaluate: as they are if they are some, else what ``shard`` makes of the data.

    Raises:
        RecipeError: They are batches of training, some of which repeat samples.
    """
    if isinstance(data, Evaluation):
        return data
    if hasattr(data, "set_epoch") and hasattr(data, "dropped"):
        raise RecipeError("evaluate got the batches of training; give it shard(..., train=False), or the data")
    return shard()


def metrics_and_loss(metrics: Any, loss: Any) -> tuple[list[Any], Any]:
    """Return metrics as a list without ``"loss"``, and the loss.

    Raises:
        RecipeError: There is nothing to measure, or no loss for ``"loss"``.
    """
    entries = list(metrics) if isinstance(metrics, (list, tuple)) else [] if metrics is None else [metrics]
    others = [entry for entry in entries if not (isinstance(entry, str) and entry == "loss")]
    if loss is None and (len(others) < len(entries) or not entries):
        raise RecipeError("evaluate needs to know what to measure; give metrics=..., loss=... or both")
    return others, loss
