"""Faults of steps 3 and 4."""

from __future__ import annotations

import functools
import importlib
from dataclasses import replace
from typing import Any

import numpy as np
from mutant_recipes import data, mutant
from mutant_tools import everywhere

import hvdkit
from hvdkit.job import world
from hvdkit.process.environment import launched_as
from hvdkit.recipe import plan
from hvdkit.recipe.evaluation import EvaluationPlan


@mutant("shard", nodes=True)
def shard_by_local_rank() -> None:
    """Two nodes with one process each take the same part."""
    split = plan.ShardPlan.split
    plan.ShardPlan.split = lambda self, block, rank: split(  # type: ignore[method-assign]
        self, block, world.current().local_rank
    )


@mutant("shard")
def same_shard() -> None:
    """All ranks take rank 0's part."""
    split = plan.ShardPlan.split
    plan.ShardPlan.split = lambda self, block, rank: split(self, block, 0)  # type: ignore[method-assign]


@mutant("shard")
def drop_last_batch() -> None:
    """The incomplete update at the end of an epoch is left out."""
    plan.ShardPlan._available = property(lambda self: max(1, self.samples // self.global_batch))  # type: ignore


@mutant("shard")
def lost_sample() -> None:
    """The last sample of every global batch is never seen."""
    split = plan.ShardPlan.split
    plan.ShardPlan.split = lambda self, block, rank: split(self, block[:-1], rank)  # type: ignore[method-assign]


@mutant("shard")
def order_by_rank() -> None:
    """Each rank shuffles in its own order."""
    micro_batches = plan.ShardPlan.micro_batches

    def changed(self: Any, epoch: int, rank: int) -> Any:
        return micro_batches(replace(self, seed=self.seed + rank), epoch, rank)

    plan.ShardPlan.micro_batches = changed  # type: ignore[method-assign]


@mutant("shard")
def same_order_every_epoch() -> None:
    """No new shuffle after the first epoch."""
    order = plan.ShardPlan.order
    plan.ShardPlan.order = lambda self, epoch: order(self, 0)  # type: ignore[method-assign]


@mutant("shard", ("torch", "tf"))
def short_batches_unweighted() -> None:
    """A short batch counts like a full one."""
    split = plan.ShardPlan.split

    def changed(self: Any, block: Any, rank: int) -> Any:
        for part in split(self, block, rank):
            yield replace(part, weight=1.0)

    plan.ShardPlan.split = changed  # type: ignore[method-assign]


class Rows:
    """A map-style data set of the user's own."""

    def __init__(self, x: Any, y: Any) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, place: int) -> Any:
        return self.x[place], self.y[place]


def rows() -> hvdkit.Data:
    given = data()
    return hvdkit.Data(Rows(*given.train), Rows(*given.validation))


@mutant("shard", ("torch",), data=rows)
def same_shard_of_rows() -> None:
    """All ranks take rank 0's part of a data set of the user's own."""
    split = plan.ShardPlan.split
    plan.ShardPlan.split = lambda self, block, rank: split(self, block, 0)  # type: ignore[method-assign]


@mutant("shard", ("torch",), data=rows)
def shard_of_a_shard() -> None:
    """Each rank takes its part of its part."""
    split = plan.ShardPlan.split

    def changed(self: Any, block: Any, rank: int) -> Any:
        return split(self, np.resize(block[rank :: self.size], len(block)), rank)

    plan.ShardPlan.split = changed  # type: ignore[method-assign]


@mutant("shard", ("torch",), data=rows)
def other_samples_than_named() -> None:
    """The loader of rank 1 brings other samples than the plan names."""
    source = importlib.import_module("hvdkit.torch.sharding").LoaderSource
    load = source.load

    def changed(self: Any, parts: Any) -> Any:
        shift, samples = world.current().rank, len(self.dataset)
        return load(self, [replace(part, indices=(part.indices + shift) % samples) for part in parts])

    source.load = changed


@mutant("shard")
def validation_of_rank_0() -> None:
    """All ranks evaluate rank 0's part."""
    batches = EvaluationPlan.micro_batches
    EvaluationPlan.micro_batches = lambda self, rank: batches(self, 0)  # type: ignore[method-assign]


@mutant("shard", ("torch",), data=rows)
def gap_in_the_validation() -> None:
    """The last validation sample is never evaluated."""
    batches = EvaluationPlan.micro_batches

    def changed(self: Any, rank: int) -> Any:
        return batches(replace(self, samples=self.samples - 1), rank)

    EvaluationPlan.micro_batches = changed  # type: ignore[method-assign]


def rows_of_rank(part: str) -> hvdkit.Data:
    """Return data of which one part is another on rank 1."""
    given = rows()
    if launched_as().rank == 1:
        getattr(given, part).x = getattr(given, part).x + 1
    return given


@mutant("recipe", ("torch",), data=functools.partial(rows_of_rank, "train"))
def other_rows_on_a_rank() -> None:
    """The recipe gives rank 1 other training data."""


@mutant("recipe", ("torch",), data=functools.partial(rows_of_rank, "validation"))
def other_validation_on_a_rank() -> None:
    """The recipe gives rank 1 other validation data."""


# step 4


@mutant("scale_lr")
def rate_not_scaled() -> None:
    """The learning rate of one process on N."""
    everywhere(plan, "scale_factor", lambda rule, ratio: 1.0)


@mutant("scale_lr", nodes=True)
def rate_scaled_by_local_size() -> None:
    """Two nodes with one process each count as one process."""
    scale_factor = plan.scale_factor
    everywhere(
        plan,
        "scale_factor",
        lambda rule, ratio: scale_factor(rule, ratio // world.current().size * world.current().local_size),
    )


@mutant("scale_lr")
def rate_scaled_twice() -> None:
    """N squared."""
    scale_factor = plan.scale_factor
    everywhere(plan, "scale_factor", lambda rule, ratio: scale_factor(rule, ratio) ** 2)


@mutant("scale_lr")
def no_warmup() -> None:
    """The scaled rate from the first update on."""
    plan.LearningRate.warmup_steps = property(lambda self: 0)  # type: ignore[assignment, method-assign]
