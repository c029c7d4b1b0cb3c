"""Pure arithmetic: which samples a rank takes, how many steps that makes, and the learning rate at each step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hvdkit.errors import DataError, RecipeError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Indices = NDArray[np.int64]


@dataclass(frozen=True)
class MicroBatch:
    """The samples of one rank in one forward and backward pass.

    Attributes:
        indices: Which samples, int64, shape ``(n,)``, n >= 1.
        weight: What the mean loss of these samples counts for: n_local * size * passes / n_global, so that the mean
            over ranks and passes is the mean over samples. 1.0 in a full batch, 0.0 where a rank has no sample left
            and repeats one.
        last: Whether an optimizer update follows.
    """

    indices: Indices
    weight: float
    last: bool

    @property
    def count(self) -> int:
        """How many samples count: 0 where a rank repeats one."""
        return len(self.indices) if self.weight else 0


@dataclass(frozen=True)
class ShardPlan:
    """How one epoch of ``samples`` samples is laid out over ranks and updates.

    ``limit`` ends the epoch after that many updates. ``whole`` gives every update ``accumulate`` passes, the last one
    too, for optimizers that count passes themselves.

    Update k takes ``order[k * G : (k + 1) * G]`` with G the global batch, and rank r every ``size``-th of them, so the
    order does not depend on the number of processes.

    Raises:
        RecipeError: A number is below 1, or ``uneven`` is unknown.
        DataError: There is nothing to train on, or not one full global batch under ``drop``.
    """

    samples: int
    batch_size: int
    size: int = 1
    accumulate: int = 1
    uneven: str = "exact"
    shuffle: bool = True
    seed: int = 0
    limit: int | None = None
    whole: bool = False

    def __post_init__(self) -> None:
        for name in ("batch_size", "size", "accumulate", "limit"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise RecipeError(f"shard: {name} is {value!r}; it must be a whole number >= 1")
        if self.uneven not in ("exact", "pad", "drop"):
            raise RecipeError(f"shard: uneven is {self.uneven!r}; it must be one of exact, pad, drop")
        if self.samples < 1:
            raise DataError("the data are empty; give at least one sample")
        if self.steps == 0:
            raise DataError(
                f"{self.samples} samples do not fill one global batch of {self.global_batch}; "
                "lower batch_size, use fewer processes, or set uneven to 'exact'"
            )
        if self.limit is not None and self.limit > self._available:
            raise DataError(
                f"{self.limit} steps per epoch and process are asked for, but {self.samples} samples make only "
                f"{self._available}; lower steps_per_epoch or repeat the data"
            )

    @property
    def global_batch(self) -> int:
        """Samples per update over all ranks."""
        return self.batch_size * self.size * self.accumulate

    @property
    def steps(self) -> int:
        """Updates per epoch, the same on every rank."""
        return self._available if self.limit is None else self.limit

    @property
    def _available(self) -> int:
        if self.uneven == "drop":
            return self.samples // self.global_batch
        return math.ceil(self.samples / self.global_batch)

    @property
    def dropped(self) -> int:
        """Samples left out of every epoch."""
        return max(0, self.samples - self.steps * self.global_batch)

    def order(self, epoch: int) -> Indices:
        """Return the order of all samples in an epoch, int64, shape ``(samples,)``."""
        import numpy as np

        if not self.shuffle:
            return np.arange(self.samples, dtype=np.int64)
        generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([self.seed, epoch])))
        return generator.permutation(self.samples).astype(np.int64)

    def micro_batches(self, epoch: int, rank: int) -> Iterator[MicroBatch]:
        """Yield the micro-batches of one rank in one epoch, the same number on every rank."""
        order = self.order(epoch)
        for step in range(self.steps):
            block = order[step * self.global_batch : (step + 1) * self.global_batch]
            yield from self.split(block, rank)

    def split(self, block: Indices, rank: int) -> Iterator[MicroBatch]:
        """Yield the micro-batches of one rank in the update that takes these samples, a global batch at most."""
        import numpy as np

        longest = math.ceil(len(block) / self.size)
        if self.uneven == "pad":
            block = np.resize(block, longest * self.size)
        local = block[rank :: self.size]
        passes = self.accumulate if self.whole else math.ceil(longest / self.batch_size)
        for number in range(passes):
            part = local[number * self.batch_size : (number + 1) * self.batch_size]
            weight = len(part) * self.size * passes / len(block)
            yield MicroBatch(part if len(part) else block[:1], weight, number == passes - 1)

    def passes(self) -> int:
        """Return the micro-batches per epoch, the same on every rank."""
        full, rest = divmod(self.samples, self.global_batch)
        if self.whole or self.steps <= full:
            return self.steps * self.accumulate
        return full * self.accumulate + math.ceil(math.ceil(rest / self.size) / self.batch_size)


def steps_for_rank(steps_per_epoch: int, size: int) -> int:
    """Divide ``steps_per_epoch``, counted for one process, by the number of processes.

    Raises:
        RecipeError: Nothing would be left.
    """
    if steps_per_epoch < size:
        raise RecipeError(
            f"Recipe.steps_per_epoch is {steps_per_epoch}, counted for one process; "
            f"divided by {size} processes no step is left"
        )
    return steps_per_epoch // size


def scale_factor(rule: str | Callable[[int], float], ratio: int) -> float:
    """Return what to multiply the learning rate of one process by.

    Args:
        rule: ``linear``: ratio (Goyal et al., 2017); ``sqrt``: its square root; ``none``: 1; or a callable of ratio.
        ratio: Global batch / batch size, that is processes * accumulate.

    Raises:
        RecipeError: The rule is unknown, or a callable returned no positive number.
    """
    if callable(rule):
        factor = float(rule(ratio))
        if not factor > 0 or not math.isfinite(factor):
            raise RecipeError(f"the learning rate rule returned {factor!r} for {ratio}; it must be > 0")
        return factor
    factors = {"linear": float(ratio), "sqrt": math.sqrt(ratio), "none": 1.0}
    if rule not in factors:
        raise RecipeError(f"learning rate rule {rule!r} is unknown; use linear, sqrt, none or a callable")
    return factors[rule]


@dataclass(frozen=True)
class LearningRate:
    """The learning rate at every update.

    During warm-up it rises linearly from ``base`` and reaches ``target`` at the end of the last warm-up epoch
    (Goyal et al., 2017, section 2.2, one step ahead so that epoch ends are round); afterwards it is
    ``target * schedule(epoch)``.

    Attributes:
        base: The rate of one process.
        target: The scaled rate.
        steps: Updates per epoch.
        warmup_epochs: Length of the warm-up; may be fractional.
        schedule: A multiplier as a function of the fractional epoch.
    """

    base: float
    target: float
    steps: int
    warmup_epochs: float = 0.0
    schedule: Callable[[float], float] | None = None

    @property
    def warmup_steps(self) -> int:
        """Updates until the target is reached."""
        return round(self.warmup_epochs * self.steps)

    def at(self, step: int) -> float:
        """Return the rate of update ``step``, counted from 0 at the start of training.

        Raises:
            RecipeError: The schedule returned no finite number.
        """
        if step < self.warmup_steps:
            return self.base + (self.target - self.base) * (step + 1) / self.warmup_steps
        if self.schedule is None:
            return self.target
        factor = float(self.schedule(step / self.steps))
        if not math.isfinite(factor):
            raise RecipeError(f"the schedule returned {factor!r} at epoch {step / self.steps:g}; it must be finite")
        return self.target * factor


def local_ranks(nodes: list[str]) -> list[tuple[int, int, int]]:
    """Return ``(local_rank, local_size, node)`` of every rank from the host name of every rank."""
    names = list(dict.fromkeys(nodes))
    result = []
    for rank, name in enumerate(nodes):
        result.append((nodes[:rank].count(name), nodes.count(name), names.index(name)))
    return result
