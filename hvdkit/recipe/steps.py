"""The eight steps that put a training job on many processes, as declarations.

All of them are frozen and validated when they are made; nothing here imports a framework.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hvdkit.engines.table import names as engines
from hvdkit.recipe.checks import above_zero, fail, is_number, one_of, true_or_false, whole
from hvdkit.recipe.stopping import direction_of

UNEVEN = ("exact", "pad", "drop")
SCALING = ("linear", "sqrt", "none")
COMPRESSION = ("none", "fp16", "bf16")
REDUCTIONS = ("average", "sum", "adasum")
BROADCAST_WHEN = ("before_first_step", "after_first_step")


@dataclass(frozen=True)
class Init:
    """Step 1: which engine moves the bytes, and how long ranks may wait for another.

    Attributes:
        engine: ``auto`` or the name of one.
        report_after: Seconds until a rank is named for which others wait.
        stuck_after: Seconds in one place after which it ends the job.
    """

    engine: str = "auto"
    report_after: float = 60.0
    stuck_after: float = 600.0

    def __post_init__(self) -> None:
        one_of(self, "engine", ("auto", *engines()))
        for name in ("report_after", "stuck_after"):
            value = getattr(self, name)
            if not (is_number(value) and 0 < value < float("inf")):
                fail(self, name, "a number of seconds above 0")


@dataclass(frozen=True)
class Pin:
    """Step 2: one device per process, by local rank; ``threads`` CPU threads per process."""

    threads: int | str = "auto"

    def __post_init__(self) -> None:
        if self.threads != "auto":
            whole(self, "threads", 1)


@dataclass(frozen=True)
class Shard:
    """Step 3: this rank's part of the data.

    Attributes:
        shuffle: A new order every epoch, the same on every number of processes.
        uneven: What happens to an incomplete global batch: ``exact`` weights it, ``pad`` repeats samples,
            ``drop`` leaves it out.
        workers: Loader processes for each process (torch only).
        prefetch: Batches prepared ahead: per worker in torch, in all in ``tf.data``.
        pin_memory: ``auto`` pins host memory when the device is a GPU (torch only).
        on_device: ``auto`` holds neutral arrays on the GPU if they take up to a quarter of what is free on it, and
            gathers batches there; True demands it (torch only).
    """

    shuffle: bool = True
    uneven: str = "exact"
    workers: int = 0
    prefetch: int = 2
    pin_memory: bool | str = "auto"
    on_device: bool | str = "auto"

    def __post_init__(self) -> None:
        true_or_false(self, "shuffle")
        one_of(self, "uneven", UNEVEN)
        whole(self, "workers", 0)
        whole(self, "prefetch", 1)
        for name in ("pin_memory", "on_device"):
            if getattr(self, name) != "auto":
                true_or_false(self, name)


@dataclass(frozen=True)
class ScaleLR:
    """Step 4: the learning rate for the larger global batch, reached over ``warmup_epochs``.

    Attributes:
        rule: ``linear`` (Goyal et al., 2017), ``sqrt``, ``none``, or a callable that takes global batch / batch size
            and returns the factor.
        warmup_epochs: Epochs over which the rate rises from that of one process; may be fractional.
    """

    rule: str | Callable[[int], float] = "linear"
    warmup_epochs: float = 0.0

    def __post_init__(self) -> None:
        if not callable(self.rule):
            one_of(self, "rule", SCALING)
        if not is_number(self.warmup_epochs) or self.warmup_epochs < 0:
            fail(self, "warmup_epochs", "a number >= 0")


@dataclass(frozen=True)
class Distribute:
    """Step 5: how gradients are reduced.

    Attributes:
        compression: ``fp16`` and ``bf16`` halve the bytes on the wire; the average is formed before the sum can
            overflow.
        accumulate: Micro-batches per update; their mean is applied.
        clip_norm: Clip the reduced gradient to this global norm, min(1, c / norm).
        gradient_predivide: Divide by this before the sum and by size / this after it (torch only).
        reduction: ``average``; ``sum``, in a loop of one's own whose loss is a sum over samples (torch only); or
            ``adasum`` (Maleki et al., 2020; torch on a Horovod that runs over MPI).
        sync_batchnorm: BatchNorm takes the statistics of the global batch (torch only).
    """

    compression: str = "none"
    accumulate: int = 1
    clip_norm: float | None = None
    gradient_predivide: float | None = None
    reduction: str = "average"
    sync_batchnorm: bool = False

    def __post_init__(self) -> None:
        one_of(self, "compression", COMPRESSION)
        whole(self, "accumulate", 1)
        above_zero(self, "clip_norm")
        above_zero(self, "gradient_predivide")
        one_of(self, "reduction", REDUCTIONS)
        true_or_false(self, "sync_batchnorm")
        if self.reduction != "average" and (self.compression != "none" or self.gradient_predivide is not None):
            fail(self, "reduction", "average where compression or gradient_predivide is set")
        if self.reduction == "sum" and self.accumulate > 1:
            fail(self, "reduction", "average where accumulate is set")


@dataclass(frozen=True)
class Broadcast:
    """Step 6: model and optimizer state from ``root`` to all.

    Attributes:
        root: The rank whose state counts.
        when: ``before_first_step`` (optimizer state is built first) or ``after_first_step``, Horovod's habit, which
            spoils the first step.
    """

    root: int = 0
    when: str = "before_first_step"

    def __post_init__(self) -> None:
        whole(self, "root", 0)
        one_of(self, "when", BROADCAST_WHEN)


@dataclass(frozen=True)
class Checkpoint:
    """Step 7: files in ``directory``, written by rank 0 alone, each with its size and sha256 in ``manifest.json``.

    Attributes:
        directory: Only rank 0 needs to see it.
        keep: How many of the newest files stay.
        resume: Go on from the newest complete file, if there is one.
        best: A metric; the file of the best epoch so far stays as ``best`` beside the others. Where its name does not
            tell whether it falls or rises, a pair such as ``("falling", "wobble")``.
        every_steps: Save inside epochs too, after so many updates (torch and tf).
        every_minutes: Save inside epochs too, about so many minutes after the file before (torch and tf).
        force: Go on though the recipe has changed since the file was saved.
    """

    directory: str
    keep: int = 3
    resume: bool = True
    best: str | tuple[str, str] | None = None
    every_steps: int | None = None
    every_minutes: float | None = None
    force: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.directory, str) or not self.directory:
            fail(self, "directory", "a folder's name")
        whole(self, "keep", 1)
        true_or_false(self, "resume")
        true_or_false(self, "force")
        whole(self, "every_steps", 1, optional=True)
        above_zero(self, "every_minutes")
        if self.best is not None and direction_of(self.best) is None:
            fail(self, "best", 'a metric whose name tells its direction, ("falling", NAME), ("rising", NAME) or None')


@dataclass(frozen=True)
class Average:
    """Step 8: metrics over all ranks, by sums and counts."""
