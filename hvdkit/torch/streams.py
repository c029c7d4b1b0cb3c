"""Streams of samples: every rank reads all of one, and takes its share of each global batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, default_collate

from hvdkit.errors import DataError, RecipeError
from hvdkit.job.world import World
from hvdkit.recipe.plan import ShardPlan
from hvdkit.torch.random_state import RandomState
from hvdkit.training.batches import Sharding
from hvdkit.training.evaluation_batches import EvaluationStream
from hvdkit.training.same_stream import check_same_stream, evidence_of
from hvdkit.training.streams import Block, ShardedStream, SplitStream, block_parts

Collate = Callable[[list[Any]], Any]


def is_stream(data: Any) -> bool:
    """Say whether data are samples one after another, without a place for each.

    Raises:
        RecipeError: They can be read only once, or in no order that ranks share.
    """
    if isinstance(data, (set, frozenset)):
        raise RecipeError("a set has another order on every rank; give a sorted list")
    if isinstance(data, Iterator):
        raise RecipeError(
            f"data of class {type(data).__name__} can be read only once; give the function that makes it, which every "
            "epoch calls anew"
        )
    if isinstance(data, type):
        return False
    if isinstance(data, IterableDataset) or _is_function(data):
        return True
    return hasattr(data, "__iter__") and not (hasattr(data, "__getitem__") and hasattr(data, "__len__"))


def _is_function(data: Any) -> bool:
    return callable(data) and not any(hasattr(data, name) for name in ("__iter__", "__getitem__"))


class Blocks(IterableDataset[Any]):
    """This rank's share of each global batch of a stream; read in the process that trains or in one loader worker.

    Attributes:
        epoch: That which is read next.
        looking: Whether samples are compared between ranks.
    """

    def __init__(self, stream: Any, collate: Collate, plan: ShardPlan, rank: int, *, again: bool) -> None:
        self._stream, self._collate, self._plan, self._rank = stream, collate, plan, rank
        self._again = again
        self.epoch = 0
        self.looking = False

    def __iter__(self) -> Iterator[Block]:
        """Yield how many samples of a global batch there are, what some of them are, and this rank's batches."""
        # one state on all ranks: what a stream draws at random, such as its order, is the same everywhere
        state = RandomState(self._plan.seed * 1_000_003 + self.epoch)
        samples, full, number = self._samples(), self._plan.global_batch, 0
        while True:
            with state.inside():
                block = list(islice(samples, full))
            if not block or (len(block) < full and self._plan.uneven == "drop"):
                return
            parts = block_parts(self._plan, len(block), self._rank)
            share = [self._collate([block[place] for place in part.indices]) for part in parts]
            # at the begin of an epoch, and then ever less often
            looked = self.looking and number & (number + 1) == 0
            yield len(block), evidence_of(block) if looked else [], share
            number += 1

    def _samples(self) -> Iterator[Any]:
        return _samples(self._stream, self.epoch, self._again)


class SplitBlocks(IterableDataset[Any]):
    """The batches of a stream of which each rank has its own part, and each loader worker its part of that.

    Attributes:
        epoch: That which is read next.
        looking: Not used.
    """

    def __init__(self, stream: Any, collate: Collate, plan: ShardPlan, *, again: bool) -> None:
        self._stream, self._collate, self._plan, self._again = stream, collate, plan, again
        self.epoch = 0
        self.looking = False

    def __iter__(self) -> Iterator[Block]:
        """Yield how many samples this rank has for an update, and the batches of them."""
        batch, full = self._plan.batch_size, self._plan.batch_size * self._plan.accumulate
        samples = _samples(self._stream, self.epoch, self._again)
        while block := list(islice(samples, full)):
            if len(block) == full or self._plan.uneven != "drop":
                starts = range(0, len(block), batch)
                yield len(block), [], [self._collate(block[start : start + batch]) for start in starts]


def _samples(stream: Any, epoch: int, again: bool) -> Iterator[Any]:
    """Yield the samples of an epoch, and if ``again`` of those that follow."""
    yield from _opened(stream, epoch)
    while again:
        epoch += 1
        found = False
        for sample in _opened(stream, epoch):
            found = True
            yield sample
        if not found:
            return


def _opened(stream: Any, epoch: int) -> Iterator[Any]:
    if hasattr(stream, "set_epoch"):
        stream.set_epoch(epoch)
    if not _is_function(stream):
        return iter(stream)
    opened = stream()
    if not isinstance(opened, Iterator):
        raise DataError(
            f"the function {getattr(stream, '__name__', '')} returns no iterator but a {type(opened).__name__}; give "
            "hk.shard that, or a generator function"
        )
    return opened


def shard_stream(
    stream: Any, asked: Sharding, world: World, options: dict[str, Any], *, split: bool = False
) -> ShardedStream | SplitStream:
    """Return this rank's batches of a stream.

    Args:
        stream: An ``IterableDataset``, another iterable, or a function that returns an iterator.
        asked: What ``shard`` was asked for.
        world: The job.
        options: Those of the ``DataLoader`` that reads it.
        split: The stream is this rank's part already.

    Raises:
        RecipeError: ``pad`` is asked for of a stream that is split already.
    """
    plan, again = asked.block_plan(world), asked.steps_per_epoch is not None
    if not split:
        return ShardedStream(_whole(stream, plan, world, options, again=again), plan, world, asked.steps_per_epoch)
    if asked.uneven == "pad":
        raise RecipeError("uneven='pad' is not available for a stream that is split already; use exact or drop")
    collate, loading = _loading(options)
    own = SplitBlocks(stream, collate, plan, again=again)
    return SplitStream(_Reading(own, _loader(own, loading)), plan, world, asked.steps_per_epoch)


def evaluate_stream(stream: Any, asked: Sharding, world: World, options: dict[str, Any]) -> EvaluationStream:
    """Return this rank's batches of a stream to evaluate; called by all ranks, which read the same.

    Raises:
        DataError: They do not, or there is nothing to read.
    """
    plan = asked.block_plan(world)
    source = _whole(stream, plan, world, options, again=False)
    count, evidence, _ = next(source.read(0, world.guard), (0, [], []))
    counts, held = zip(*world.engine.allgather_object((count, evidence)), strict=True)
    check_same_stream(counts, held)
    if not count:
        raise DataError("the data are empty; give at least one sample")

    def read() -> Iterator[Any]:
        for count, _, share in source.read(0, False):
            parts = block_parts(plan, count, world.rank)
            yield from (tree for part, tree in zip(parts, share, strict=True) if part.count)

    return EvaluationStream(read, None, _no_length)


def _no_length() -> int:
    raise TypeError("a stream has no length")


def _whole(stream: Any, plan: ShardPlan, world: World, options: dict[str, Any], *, again: bool) -> _Reading:
    collate, loading = _loading(options)
    blocks = Blocks(stream, collate, plan, world.rank, again=again)
    if loading.get("num_workers"):
        # several would each read all of it, and a stream that splits itself over workers would split it once more
        loading["num_workers"] = 1
    return _Reading(blocks, _loader(blocks, loading))


def _loading(options: dict[str, Any]) -> tuple[Collate, dict[str, Any]]:
    """Return how samples are collated, and the other settings of a loader that reads the stream anew every epoch."""
    loading = {name: value for name, value in options.items() if name != "persistent_workers"}
    return loading.pop("collate_fn", default_collate), loading


def _loader(blocks: Any, loading: dict[str, Any]) -> Any:
    return DataLoader(blocks, batch_size=None, collate_fn=as_it_is, **loading)


class _Reading:
    """The blocks of a stream, read by a loader."""

    def __init__(self, blocks: Blocks | SplitBlocks, loader: Any) -> None:
        self._blocks, self._loader = blocks, loader

    def read(self, epoch: int, looking: bool) -> Iterator[Block]:
        """Yield the global batches from the begin of an epoch on."""
        self._blocks.epoch, self._blocks.looking = epoch, looking
        return iter(self._loader)


def as_it_is(batch: Any) -> Any:
    """Take a batch that is collated already."""
    return batch
