"""Streams of samples: every rank reads all of one, and takes its share of each global batch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np

from hvdkit.errors import DataError, RecipeError
from hvdkit.job.world import World
from hvdkit.recipe.plan import MicroBatch, ShardPlan
from hvdkit.training.batches import Batch, Current
from hvdkit.training.same_stream import Evidence, check_same_stream

# how many samples a global batch has, what some of them are, and this rank's batches
Block = tuple[int, Evidence, list[Any]]


class StreamSource(Protocol):
    """A stream in one framework."""

    def read(self, epoch: int, looking: bool) -> Iterator[Block]:
        """Yield the global batches from the begin of an epoch on; ``looking`` asks for evidence of the samples."""


def block_parts(plan: ShardPlan, count: int, rank: int) -> list[MicroBatch]:
    """Return what a rank's batches are made of in an update of so many samples."""
    return list(plan.split(np.arange(count), rank))


class _Stream(Current):
    """Batches of a stream; an epoch is all of it, or a number of updates, after which it goes on."""

    samples: int | None = None
    dropped = 0
    targets: Any = None

    def __init__(self, source: StreamSource, plan: ShardPlan, world: World, limit: int | None) -> None:
        super().__init__()
        self._source, self._plan, self._world, self._limit = source, plan, world, limit
        self._running: Iterator[Any] | None = None
        self._epoch = 0

    @property
    def steps(self) -> int:
        """Optimizer updates per epoch, the same on every rank.

        Raises:
            RecipeError: An epoch is the whole stream, whose length is not known.
        """
        if self._limit is None:
            raise RecipeError("the data are a stream of unknown length; give steps_per_epoch")
        return self._limit

    def set_epoch(self, epoch: int) -> None:
        """Count epochs from here; a stream that is read in parts goes on where it is."""
        self._epoch = epoch

    def __len__(self) -> int:
        return self.steps * self._plan.accumulate

    def _batches(self) -> Iterator[Batch]:
        epoch, number, updates = self._epoch, 0, 0
        if self._running is None or self._limit is None:
            self._running = self._source.read(epoch, self._world.guard and self._world.size > 1)
        while updates != self._limit:
            update = self._update()
            if not update:
                break
            for part, tree in update:
                place = {"weight": part.weight, "last": part.last, "epoch": epoch, "number": number}
                yield Batch.of(tree, part.count, len(part.indices), **place)
                number += 1
            updates += 1
        if updates == 0 or self._limit not in (None, updates):
            raise DataError(
                f"the stream gives too few samples in epoch {epoch}: every epoch takes all of it anew, and needs "
                f"{self._plan.global_batch if self._plan.uneven == 'drop' else 1} or more"
            )
        self._epoch = epoch + 1

    def _update(self) -> list[tuple[MicroBatch, Any]]:
        """Read what one update takes, together with all ranks; nothing at the end of an epoch."""
        assert self._running is not None
        found: Block = next(self._running, (0, [], []))
        update = self._share(found)
        if not update:
            self._running = None
        return update

    @abstractmethod
    def _share(self, found: Block) -> list[tuple[MicroBatch, Any]]:
        """Return this rank's batches of an update, with all ranks."""


class ShardedStream(_Stream):
    """This rank's share of a stream that every rank reads as a whole."""

    def _share(self, found: Block) -> list[tuple[MicroBatch, Any]]:
        count, evidence, share = found
        if self._world.size > 1:
            counts, held = zip(*self._world.engine.allgather_object((count, evidence)), strict=True)
            check_same_stream(counts, held)
        return list(zip(block_parts(self._plan, count, self._world.rank), share, strict=True)) if count else []


class SplitStream(_Stream):
    """A rank's own part of a stream that the user has split; ranks that have fewer samples left weigh less."""

    _spare: Any = None

    def _share(self, found: Block) -> list[tuple[MicroBatch, Any]]:
        count, _, batches = found
        self._spare = batches[-1] if batches else self._spare
        counts, spare = zip(*self._world.engine.allgather_object((count, self._spare is not None)), strict=True)
        total = sum(counts)
        if not total or (self._plan.uneven == "drop" and not all(counts)):
            return []
        if not all(spare):
            raise DataError(f"data: rank {spare.index(False)} has no sample of the stream that is split by rank")
        size, longest = self._plan.batch_size, max(counts)
        passes = -(-longest // size)
        update = []
        for number in range(passes):
            own = min(size, max(0, count - number * size))
            weight = own * self._world.size * passes / total
            # a rank that has no sample left repeats its last batch at weight 0
            tree = batches[number] if own else self._spare
            update.append((MicroBatch(np.arange(own), weight, number == passes - 1), tree))
        return update
