"""What gradients count for in a loop of one's own over ``shard``'s batches: a short batch for its samples alone.

Reducers multiply by it. The batch that a loop is at tells which one gradients belong to, so a loop that reads ahead of
its backward passes is refused where a batch is short.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol
from weakref import WeakSet, ref

from hvdkit.errors import RecipeError

_REMEDY = "; give shard(..., uneven='drop') or 'pad'"
_READ_AHEAD = (
    "shard's batches are read ahead of the backward passes, so hvdkit cannot weigh a short one; iterate over what "
    "shard returned, not over list(...) or a wrapper" + _REMEDY
)
_SIDE_BY_SIDE = (
    "two loops over shard's batches run at once, and one has come to a short batch, so hvdkit cannot weigh their "
    "gradients" + _REMEDY + " to both"
)
_weighed_already: ContextVar[bool] = ContextVar("the loss has its weight", default=False)


class Follower(Protocol):
    """What weighs gradients."""

    def weigh(self, weight: float) -> None:
        """Multiply gradients by this from now on."""


class LoopWeight:
    """The weight of the batch that a loop is at.

    Attributes:
        now: What gradients count for; 1.0 outside of loops.
    """

    def __init__(self) -> None:
        self.now = 1.0
        self._followers: WeakSet[Follower] = WeakSet()
        self._loops: list[_Loop] = []
        self._loops_that_weigh = 0
        self._counted = 0
        self._counters: list[Callable[[], int]] = []
        # the last, short batch of a loop that ended before a pass came, as long as somebody holds it
        self._left_behind: Callable[[], object] = _nothing

    def follow(self, follower: Follower) -> None:
        """Let something weigh gradients, as long as it lives."""
        self._followers.add(follower)
        follower.weigh(self.now)

    def count_pass(self) -> None:
        """Count a backward pass that begins.

        Raises:
            RecipeError: It may be for a short batch whose loop has ended.
        """
        self.check_pass()
        self._counted += 1

    @property
    def passes(self) -> int:
        """Backward passes so far, counted from anywhere."""
        return self._passes()

    def count_passes(self, number: int) -> None:
        """Count passes in which no Python ran.

        Raises:
            RecipeError: They may be for a short batch whose loop has ended.
        """
        if number > 0:
            self.check_pass()
        self._counted += number

    def count_by(self, counter: Callable[[], int]) -> None:
        """Count the passes too of which this function returns the number: no Python runs in those of a graph."""
        self._counters.append(counter)

    def check_pass(self) -> None:
        """Refuse a backward pass here that may be for a short batch whose loop has ended.

        Raises:
            RecipeError: It may.
        """
        if not (self._loops or self._loops_that_weigh) and self._left_behind() is not None:
            self._left_behind = _nothing
            raise RecipeError(_READ_AHEAD)

    @contextmanager
    def loop_that_weighs(self) -> Iterator[None]:
        """Run a loop inside whose losses are multiplied by the weights of their batches."""
        self._loops_that_weigh += 1
        try:
            yield
        finally:
            self._loops_that_weigh -= 1

    @contextmanager
    def loop(self, batches: object) -> Iterator[Callable[[float, object], None]]:
        """Give a function that a loop over ``batches`` calls with each one that it comes to, and its weight.

        Raises:
            RecipeError: A batch comes whose gradients could not be told from another's.
        """
        self._left_behind = _nothing
        # an earlier one that an error has left may still be held by its traceback
        self._loops = [other for other in self._loops if other.batches is not batches]
        own = _Loop(batches, self._passes)
        self._loops.append(own)

        def come_to(weight: float, batch: object) -> None:
            own.come_to(weight, batch)
            if any(other.weight != weight for other in self._loops):
                raise RecipeError(_SIDE_BY_SIDE)
            self._set(weight)

        try:
            yield come_to
        finally:
            self._left_behind = own.left_behind()
            self._loops = [other for other in self._loops if other is not own]
            self._set(self._loops[-1].weight if self._loops else 1.0)

    def _passes(self) -> int:
        return self._counted + sum(counter() for counter in self._counters)

    def _set(self, weight: float) -> None:
        if weight != self.now:
            self.now = weight
            for follower in list(self._followers):
                follower.weigh(weight)


class _Loop:
    """One loop over batches, from its first on."""

    def __init__(self, batches: object, passes: Callable[[], int]) -> None:
        self.batches, self.weight = batches, 1.0
        self._batch: Callable[[], object] = _nothing
        self._passes = passes
        self._began = self._latest = passes()
        self._number = 0
        self._reads_ahead = False

    def come_to(self, weight: float, batch: object) -> None:
        """Count a batch, and see whether the one before had a backward pass."""
        self._number += 1
        self.weight = weight
        self._batch = _nothing if weight == 1.0 else _held(batch)
        if self._number != 2 and weight == 1.0:
            return
        self._latest = self._passes()
        if self._number == 2:
            self._reads_ahead = self._latest == self._began
        if weight != 1.0 and self._reads_ahead and self._latest != self._began:
            raise RecipeError(_READ_AHEAD)

    def left_behind(self) -> Callable[[], object]:
        """Return what gives the last batch, as long as it lives, if it is short and had no backward pass."""
        return self._batch if self._latest == self._passes() else _nothing


def _held(batch: object) -> Callable[[], object]:
    try:
        return ref(batch)
    except TypeError:  # text, for one
        return _nothing


def _nothing() -> None:
    return None


LOOP_WEIGHT = LoopWeight()


@contextmanager
def weighed_already() -> Iterator[None]:
    """Leave gradients inside as they are: their loss was weighed."""
    token = _weighed_already.set(True)
    try:
        yield
    finally:
        _weighed_already.reset(token)


def is_weighed_already() -> bool:
    """Say whether gradients are to be left as they are."""
    return _weighed_already.get()
