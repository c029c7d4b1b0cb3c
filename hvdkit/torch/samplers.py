"""The order of a ``DataLoader`` with a sampler of its own: rank 0 draws it, and all ranks take their shares of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from hvdkit.errors import DataError, RecipeError
from hvdkit.job.world import World
from hvdkit.recipe.plan import MicroBatch, ShardPlan
from hvdkit.training.batches import PlannedBatches, Source


def takes_plans_order(loader: DataLoader[Any]) -> bool:
    """Say whether hvdkit may draw the order itself, from its seed: all samples once, in order or shuffled."""
    return takes_each_once(loader) and getattr(loader.sampler, "generator", None) is None


def takes_each_once(loader: DataLoader[Any]) -> bool:
    """Say whether a loader brings all samples once, in order or shuffled."""
    sampler = loader.sampler
    if type(sampler) is RandomSampler:
        return not sampler.replacement and sampler.num_samples == len(sampler.data_source)
    return type(sampler) is SequentialSampler


def check_sampler(loader: DataLoader[Any]) -> None:
    """Check that a loader's order can be drawn on rank 0 and shared out sample by sample.

    Raises:
        RecipeError: It draws whole batches, is one rank's share already, or does not know its length.
    """
    sampler: Any = loader.sampler
    if loader.batch_sampler is None:
        raise RecipeError(
            "the DataLoader has batch_size None and gives what its data set gives, batches perhaps; give single "
            "samples and batch_size, hvdkit shards and batches them"
        )
    if isinstance(loader.dataset, IterableDataset):
        return
    if type(loader.batch_sampler) is not BatchSampler:
        raise RecipeError(
            f"the DataLoader has its own batch_sampler ({type(loader.batch_sampler).__name__}), whose batches cannot "
            "be shared out; give it a sampler of single samples and batch_size"
        )
    if isinstance(sampler, DistributedSampler):
        raise RecipeError("the DataLoader has a DistributedSampler; leave it out, hvdkit shards the data itself")
    if not hasattr(sampler, "__len__"):
        raise RecipeError(
            f"the DataLoader's sampler ({type(sampler).__name__}) has no __len__; give it one, so that all ranks know "
            "how many batches there are"
        )


class DrawnBatches(PlannedBatches):
    """Batches in the order that the loader's own sampler gives on rank 0, anew for every epoch."""

    def __init__(self, source: Source, plan: ShardPlan, world: World, sampler: Any) -> None:
        super().__init__(source, replace(plan, shuffle=False), world.rank)
        self._world, self._sampler = world, sampler

    def parts(self) -> list[MicroBatch]:
        """Draw the epoch's order, together with all ranks; return what each batch is made of.

        Raises:
            DataError: The sampler gives another number of samples than it says; on every rank.
        """
        order: NDArray[np.int64] = self._world.root_only(self._draw)
        return [replace(part, indices=order[part.indices]) for part in super().parts()]

    def _draw(self) -> NDArray[np.int64]:
        if hasattr(self._sampler, "set_epoch"):
            self._sampler.set_epoch(self.epoch)
        return drawn_order(self._sampler)


def drawn_order(sampler: Any) -> NDArray[np.int64]:
    """Return the samples that a sampler draws, on this rank alone.

    Raises:
        DataError: It gives another number of samples than it says.
    """
    order = np.fromiter((int(index) for index in sampler), np.int64)
    if len(order) != len(sampler):
        raise DataError(
            f"the sampler {type(sampler).__name__} says that it has {len(sampler)} samples but gives {len(order)}; "
            "make both equal"
        )
    return order
