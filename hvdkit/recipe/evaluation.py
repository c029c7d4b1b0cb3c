"""How samples are laid out over ranks where they are evaluated, not trained on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hvdkit.errors import DataError, RecipeError
from hvdkit.recipe.plan import MicroBatch


@dataclass(frozen=True)
class EvaluationPlan:
    """Every sample once, in order: rank r takes samples r, r + size, r + 2 size ...

    No sample is repeated, so that the last batch may be short, and ranks may differ by one batch or have none.

    Raises:
        RecipeError: The batch size is below 1.
        DataError: There is nothing to evaluate.
    """

    samples: int
    batch_size: int
    size: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.batch_size, int) or self.batch_size < 1:
            raise RecipeError(f"shard: batch_size is {self.batch_size!r}; it must be a whole number >= 1")
        if self.samples < 1:
            raise DataError("the data are empty; give at least one sample")

    def count(self, rank: int) -> int:
        """Return how many samples a rank has."""
        return len(range(rank, self.samples, self.size))

    def batches(self, rank: int) -> int:
        """Return how many batches a rank has."""
        return -(-self.count(rank) // self.batch_size)

    def micro_batches(self, rank: int) -> Iterator[MicroBatch]:
        """Yield the batches of a rank, each at weight 1."""
        import numpy as np

        own = np.arange(rank, self.samples, self.size, dtype=np.int64)
        for start in range(0, len(own), self.batch_size):
            yield MicroBatch(own[start : start + self.batch_size], 1.0, True)


def check_evaluation(uneven: str, accumulate: int, steps_per_epoch: int | None) -> None:
    """Refuse what ``shard`` takes for training alone.

    Raises:
        RecipeError: Samples would be left out or repeated, or passes counted.
    """
    asked = {"uneven": (uneven, "exact"), "accumulate": (accumulate, 1), "steps_per_epoch": (steps_per_epoch, None)}
    for name, (found, usual) in asked.items():
        if found != usual:
            raise RecipeError(
                f"shard(train=False) brings every sample once, but has {name}={found!r}"
                f"{' (a DataLoader with drop_last=True has it too)' if found == 'drop' else ''}; leave it out"
            )
