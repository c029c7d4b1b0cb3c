"""More faults of step 3: which samples a rank takes, and what arrives of them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from mutant_recipes import mutant
from mutant_tools import in_torch, rank

from hvdkit.recipe import plan


def _orders(change: Callable[[Any, Any, int], Any]) -> None:
    order = plan.ShardPlan.order
    plan.ShardPlan.order = lambda self, epoch: change(self, order(self, epoch), epoch)  # type: ignore[method-assign]


def _parts(change: Callable[[Any, int], Any]) -> None:
    """Change a micro-batch of a rank."""
    split = plan.ShardPlan.split

    def changed(self: Any, block: Any, rank: int) -> Any:
        for part in split(self, block, rank):
            yield change(part, rank)

    plan.ShardPlan.split = changed  # type: ignore[method-assign]


@mutant("shard")
def never_shuffled() -> None:
    """The order of the file, every epoch."""
    _orders(lambda self, order, epoch: np.sort(order))


@mutant("shard")
def order_rolled_by_one() -> None:
    """The epoch starts with its second sample."""
    _orders(lambda self, order, epoch: np.roll(order, -1))


@mutant("shard")
def order_backwards() -> None:
    """The epoch starts with its last sample."""
    _orders(lambda self, order, epoch: order[::-1].copy())


@mutant("shard")
def seed_ignored() -> None:
    """The order of another seed."""
    order = plan.ShardPlan.order
    plan.ShardPlan.order = lambda self, epoch: order(replace(self, seed=99), epoch)  # type: ignore[method-assign]


@mutant("shard")
def epochs_counted_from_one() -> None:
    """The order of the next epoch."""
    order = plan.ShardPlan.order
    plan.ShardPlan.order = lambda self, epoch: order(self, epoch + 1)  # type: ignore[method-assign]


@mutant("shard")
def first_sample_twice() -> None:
    """Every batch has its first sample instead of its last."""
    _parts(lambda part, rank: replace(part, indices=np.append(part.indices[:-1], part.indices[:1])))


@mutant("shard")
def padded_though_exact() -> None:
    """Samples are repeated until ranks have equally many."""
    split = plan.ShardPlan.split
    plan.ShardPlan.split = lambda self, block, rank: split(  # type: ignore[method-assign]
        replace(self, uneven="pad"), block, rank
    )


@mutant("shard")
def last_rank_takes_the_next_update() -> None:
    """The last rank is one global batch ahead."""
    split, size = plan.ShardPlan.split, plan.ShardPlan.micro_batches

    def changed(self: Any, epoch: int, rank: int) -> Any:
        if rank < self.size - 1:
            yield from size(self, epoch, rank)
            return
        order = np.roll(self.order(epoch), -self.global_batch)
        for step in range(self.steps):
            yield from split(self, order[step * self.global_batch : (step + 1) * self.global_batch], rank)

    plan.ShardPlan.micro_batches = changed  # type: ignore[method-assign]


@mutant("shard")
def samples_cut_to_whole_batches_on_the_last_rank() -> None:
    """The last rank repeats its first sample where its batch is short."""
    _parts(
        lambda part, rank: replace(part, indices=part.indices[:1].repeat(len(part.indices))) if rank and not _full(part)
        else part
    )  # fmt: skip


def _full(part: Any) -> bool:
    return bool(part.weight == 1.0)


@mutant("shard", ("torch", "tf"))
def weight_by_batch_size() -> None:
    """A short batch counts for its share of a full one, not of the update."""
    _parts(lambda part, rank: replace(part, weight=len(part.indices) / 4 if part.weight else 0.0))


@mutant("shard", ("torch", "tf"))
def weights_of_another_rank() -> None:
    """Rank 0's short batch has the weight of rank 1's."""
    split = plan.ShardPlan.split

    def changed(self: Any, block: Any, rank: int) -> Any:
        others = list(split(self, block, self.size - 1 - rank))
        for part, other in zip(split(self, block, rank), others, strict=True):
            yield replace(part, weight=other.weight or part.weight)

    plan.ShardPlan.split = changed  # type: ignore[method-assign]


def _arriving(change: Callable[[Any, Any], tuple[Any, Any]]) -> None:
    """Change the arrays that all samples come from, on every rank but the first."""
    if in_torch():
        module = importlib.import_module("hvdkit.torch.array_data")
        make = module.ArrayDataset.__init__
        module.ArrayDataset.__init__ = lambda self, data: make(self, change(*data) if rank() else data)
        return
    sharding = importlib.import_module("hvdkit.tf.sharding").ArraySource
    start = sharding.__init__
    sharding.__init__ = lambda self, data, prefetch: start(self, change(*data) if rank() else data, prefetch)
    datasets = importlib.import_module("hvdkit.keras.fit_dataset")
    begin = datasets.from_arrays
    datasets.from_arrays = lambda data, *how: begin(change(*data) if rank() else data, *how)


@mutant("shard")
def labels_of_other_samples() -> None:
    """Inputs and targets are one sample apart on all ranks but the first."""
    _arriving(lambda x, y: (x, np.roll(y, 1)))


@mutant("shard")
def inputs_rounded_to_half() -> None:
    """Inputs went through half precision on all ranks but the first."""
    _arriving(lambda x, y: (x.astype(np.float16).astype(x.dtype), y))


@mutant("shard")
def inputs_scaled_by_the_rank() -> None:
    """Each rank brings its inputs to its own scale."""
    _arriving(lambda x, y: (x * np.float32(1 + rank()), y))
