"""One rank's batches: what every ``shard`` returns, and what trainers, ``fit``, ``verify`` and observers read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Protocol

from hvdkit.errors import RecipeError
from hvdkit.job.world import World
from hvdkit.recipe.plan import MicroBatch, ShardPlan
from hvdkit.recipe.trees import leaves
from hvdkit.training.batch import Batch as Batch
from hvdkit.training.batch import as_pair
from hvdkit.training.loop_weight import LOOP_WEIGHT

# layers that take statistics over ranks leave out a rank whose batch only repeats a sample; no context variable, since
# torch runs backward passes on GPUs in threads of its own
_counts = [True]
_in_loop: ContextVar[bool] = ContextVar("a loop over sharded batches runs", default=False)


def current_batch_counts() -> bool:
    """Say whether the batch that a loop over :class:`Batches` is at stands for samples; True outside of one."""
    return _counts[0]


def in_sharded_loop() -> bool:
    """Say whether a loop over :class:`Batches` is running here."""
    return _in_loop.get()


def given_batch_size(batch_size: int | None, own: int | None = None) -> int:
    """Return the samples per process and batch: as asked for, else those of the data's own batches.

    Raises:
        RecipeError: Neither is known.
    """
    size = own if batch_size is None else batch_size
    if size is None:
        raise RecipeError("shard needs batch_size, the samples per process and batch, as in shard((x, y), 32)")
    return size


@dataclass(frozen=True)
class Sharding:
    """What ``shard`` is asked for; see the backends' ``shard``."""

    batch_size: int
    shuffle: bool = True
    seed: int = 0
    uneven: str = "exact"
    accumulate: int = 1
    steps_per_epoch: int | None = None
    workers: int = 0
    prefetch: int = 2
    pin_memory: bool | str = "auto"

    def plan(self, samples: int, world: World, *, shuffle: bool | None = None, whole: bool = False) -> ShardPlan:
        """Lay samples out over the ranks.

        Args:
            samples: All of them.
            world: The job.
            shuffle: Whether the plan draws the order; as asked for if None.
            whole: Give the last update of an epoch as many passes as the others.

        Raises:
            DataError: The data are empty, or too few for ``drop``.
            RecipeError: A number is below 1, or ``uneven`` is unknown.
        """
        return ShardPlan(
            samples,
            self.batch_size,
            world.size,
            self.accumulate,
            self.uneven,
            self.shuffle if shuffle is None else shuffle,
            self.seed,
            self.steps_per_epoch,
            whole=whole,
        )

    def block_plan(self, world: World, *, whole: bool = False) -> ShardPlan:
        """Lay a single global batch of a stream out over the ranks.

        Raises:
            RecipeError: A number is below 1, or ``uneven`` is unknown.
        """
        endless = replace(self, uneven="exact", steps_per_epoch=None).plan(1, world, shuffle=False, whole=whole)
        if self.steps_per_epoch is not None:
            replace(endless, samples=endless.global_batch * max(1, self.steps_per_epoch), limit=self.steps_per_epoch)
        return replace(endless, samples=endless.global_batch, uneven=self.uneven)


class Batches(Protocol):
    """This rank's share of every epoch, whatever takes it: a loop or ``fit``.

    Attributes:
        steps: Optimizer updates per epoch, the same on every rank.
        samples: Training samples of an epoch over all ranks; None for a stream.
        dropped: Samples that are left out of every epoch.
        targets: Those of all ranks where they are arrays; else None.
    """

    @property
    def steps(self) -> int: ...  # noqa: D102
    @property
    def samples(self) -> int | None: ...  # noqa: D102
    @property
    def dropped(self) -> int: ...  # noqa: D102
    @property
    def targets(self) -> Any: ...  # noqa: D102

    def set_epoch(self, epoch: int) -> None:
        """Take the order of this epoch, counted from 0, when iteration starts again."""

    def __len__(self) -> int:
        """Return the batches per epoch."""

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of an epoch: inputs, targets and, for ``fit``, weights if there are any."""


class LoopBatches(Batches, Protocol):
    """Batches for a loop; re-iterable: the next iteration takes the next epoch.

    Attributes:
        weight: That of the current batch; 1.0 in a loop of one's own, whose gradients the reducers weigh.
        count: That of the current batch.
        last: That of the current batch.
    """

    weight: float
    count: int
    last: bool

    def counted(self) -> Iterator[Batch]:
        """Yield the batches of an epoch."""

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of an epoch; those that are no pairs in the structure of the data."""


def refuse_sharded(data: Any) -> None:
    """Refuse what ``shard`` has returned.

    Raises:
        RecipeError: It is one rank's share already.
    """
    if all(hasattr(data, name) for name in ("set_epoch", "dropped", "targets")):
        raise RecipeError("the data are sharded already; give shard() all of them, once")


def pairs(batches: LoopBatches) -> Iterator[Batch]:
    """Yield the batches of an epoch for a loss of inputs and targets.

    Raises:
        RecipeError: A batch is no pair.
    """
    return map(as_pair, batches.counted())


class Planned:
    """Samples of a set of known length, laid out by a plan for one epoch after the other.

    Attributes:
        plan: How they are laid out over ranks.
        rank: This rank.
        epoch: The epoch whose order comes next, counted from 0.
    """

    def __init__(self, plan: ShardPlan, rank: int) -> None:
        self.plan, self.rank = plan, rank
        self.epoch = 0

    @property
    def steps(self) -> int:
        """Optimizer updates per epoch, the same on every rank."""
        return self.plan.steps

    @property
    def samples(self) -> int | None:
        """Training samples of an epoch over all ranks."""
        return self.plan.samples - self.plan.dropped

    @property
    def dropped(self) -> int:
        """Samples that are left out of every epoch."""
        return self.plan.dropped

    def set_epoch(self, epoch: int) -> None:
        """Take the order of this epoch, counted from 0, when iteration starts again."""
        self.epoch = epoch

    def parts(self) -> list[MicroBatch]:
        """Return what each batch of the epoch is made of."""
        return list(self.plan.micro_batches(self.epoch, self.rank))

    def __len__(self) -> int:
        return self.plan.passes()


class Source(Protocol):
    """Where the samples come from, in one framework.

    Attributes:
        targets: All targets where they are arrays; else None.
        drawn: Whether the samples are those that the plan's indices name.
    """

    targets: Any
    drawn: bool

    def load(self, parts: list[MicroBatch]) -> Iterator[Any]:
        """Yield the samples of each micro-batch of an epoch, a tree of arrays or tensors."""


class Current(ABC):
    """What is known of the batch that a loop is at."""

    def __init__(self) -> None:
        self.weight, self.count, self.last = 1.0, 0, True

    @abstractmethod
    def _batches(self) -> Iterator[Batch]:
        """Yield the batches of the epoch."""

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches for a loop of one's own, whose gradients the reducers weigh."""
        with LOOP_WEIGHT.loop(self) as come_to:
            for batch in self.counted():
                self.weight = 1.0
                weight, batch = batch.weight, batch if batch.weight == 1.0 else replace(batch, weight=1.0)
                come_to(weight, batch if batch.given is batch else next(leaves(batch.given)))
                yield batch.given

    def counted(self) -> Iterator[Batch]:
        """Yield the batches for a loop that weighs its losses, and note what the current one counts for."""
        with LOOP_WEIGHT.loop_that_weighs():
            try:
                for batch in self._batches():
                    self.weight, self.count, self.last = batch.weight, batch.count, batch.last
                    _counts[0] = batch.count > 0
                    _in_loop.set(True)
                    yield batch
            finally:
                _counts[0] = True
                _in_loop.set(False)


class PlannedBatches(Current, Planned):
    """Batches of a set of known length, in the order of a plan.

    Attributes:
        source: Where the samples come from.
    """

    def __init__(self, source: Source, plan: ShardPlan, rank: int) -> None:
        Current.__init__(self)
        Planned.__init__(self, plan, rank)
        self.source = source

    @property
    def targets(self) -> Any:
        """The targets of all ranks where they are arrays; else None."""
        return self.source.targets

    def _batches(self) -> Iterator[Batch]:
        parts, epoch = self.parts(), self.epoch
        for number, (part, tree) in enumerate(zip(parts, self.source.load(parts), strict=True)):
            place = {"epoch": epoch, "number": number, "indices": part.indices if self.source.drawn else None}
            yield Batch.of(tree, part.count, len(part.indices), weight=part.weight, last=part.last, **place)
        self.epoch = epoch + 1


class StreamBatches(Current):
    """Full batches of a stream, which goes on where the last epoch stopped.

    Attributes:
        steps: Optimizer updates per epoch.
    """

    samples: int | None = None
    dropped = 0
    targets: Any = None

    def __init__(self, batches: Any, steps: int, accumulate: int, batch_size: int) -> None:
        super().__init__()
        self.steps = steps
        self._accumulate, self._batch_size = accumulate, batch_size
        self._source: Any = batches
        self._running: Iterator[Any] | None = None
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Count epochs from here; a stream has no order to repeat."""
        self._epoch = epoch

    def __len__(self) -> int:
        return self.steps * self._accumulate

    def _batches(self) -> Iterator[Batch]:
        if self._running is None:
            self._running = iter(self._source)
        epoch = self._epoch
        for number in range(len(self)):
            last = (number + 1) % self._accumulate == 0
            yield Batch.of(next(self._running), self._batch_size, last=last, epoch=epoch, number=number)
        self._epoch = epoch + 1
