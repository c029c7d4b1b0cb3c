"""The declarations: what to train, and the eight steps that put it on many processes.

All of them are frozen and validated when they are made; nothing here imports a framework.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from hvdkit.errors import RecipeError

ENGINES = ("auto", "serial", "horovod", "torch", "mpi")
FRAMEWORKS = ("torch", "tf", "keras")
LOSSES = ("sparse_categorical_crossentropy", "mean_squared_error")
UNEVEN = ("exact", "pad", "drop")
SCALING = ("linear", "sqrt", "none")
COMPRESSION = ("none", "fp16", "bf16")
REDUCTIONS = ("average", "adasum")
PRECISIONS = ("fp32", "bf16", "fp16")
BROADCAST_WHEN = ("before_first_step", "after_first_step")

T = TypeVar("T")


def _fail(owner: object, name: str, allowed: str) -> None:
    raise RecipeError(f"{type(owner).__name__}.{name} is {getattr(owner, name)!r}; it must be {allowed}")


def _one_of(owner: object, name: str, allowed: tuple[str, ...]) -> None:
    value = getattr(owner, name)
    if not isinstance(value, str) or value not in allowed:
        _fail(owner, name, "one of " + ", ".join(allowed))


def _whole(owner: object, name: str, least: int, optional: bool = False) -> None:
    value = getattr(owner, name)
    if optional and value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        _fail(owner, name, f"a whole number >= {least}" + (" or None" if optional else ""))


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _above_zero(owner: object, name: str) -> None:
    value = getattr(owner, name)
    if value is not None and not (_is_number(value) and value > 0):
        _fail(owner, name, "a number > 0 or None")


def _bool(owner: object, name: str) -> None:
    if not isinstance(getattr(owner, name), bool):
        _fail(owner, name, "True or False")


@dataclass(frozen=True)
class Data:
    """What to train on.

    Attributes:
        train: Neutral arrays ``(x, y)`` (images NHWC float32, integer labels), or the framework's own: a map-style
            data set or ``DataLoader`` for torch, a ``tf.data.Dataset`` of single samples for tf and keras.
        validation: The same, or None.
        classes: The number of classes, when the labels are to be checked against it.
    """

    train: Any
    validation: Any = None
    classes: int | None = None

    def __post_init__(self) -> None:
        _whole(self, "classes", 2, optional=True)


@dataclass(frozen=True)
class Init:
    """Step 1: which engine moves the bytes."""

    engine: str = "auto"

    def __post_init__(self) -> None:
        _one_of(self, "engine", ENGINES)


@dataclass(frozen=True)
class Pin:
    """Step 2: one device per process, by local rank; ``threads`` CPU threads per process."""

    threads: int | str = "auto"

    def __post_init__(self) -> None:
        if self.threads != "auto":
            _whole(self, "threads", 1)


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
    """

    shuffle: bool = True
    uneven: str = "exact"
    workers: int = 0
    prefetch: int = 2
    pin_memory: bool | str = "auto"

    def __post_init__(self) -> None:
        _bool(self, "shuffle")
        _one_of(self, "uneven", UNEVEN)
        _whole(self, "workers", 0)
        _whole(self, "prefetch", 1)
        if self.pin_memory != "auto":
            _bool(self, "pin_memory")


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
            _one_of(self, "rule", SCALING)
        if not _is_number(self.warmup_epochs) or self.warmup_epochs < 0:
            _fail(self, "warmup_epochs", "a number >= 0")


@dataclass(frozen=True)
class Distribute:
    """Step 5: how gradients are reduced.

    Attributes:
        compression: ``fp16`` and ``bf16`` halve the bytes on the wire; the average is formed before the sum can
            overflow.
        accumulate: Micro-batches per update; their mean is applied.
        clip_norm: Clip the reduced gradient to this global norm, min(1, c / norm).
        gradient_predivide: Divide by this before the sum and by size / this after it (torch only).
        reduction: ``average``, or ``adasum`` (Maleki et al., 2020; torch on a Horovod that runs over MPI).
        sync_batchnorm: BatchNorm takes the statistics of the global batch (torch only).
    """

    compression: str = "none"
    accumulate: int = 1
    clip_norm: float | None = None
    gradient_predivide: float | None = None
    reduction: str = "average"
    sync_batchnorm: bool = False

    def __post_init__(self) -> None:
        _one_of(self, "compression", COMPRESSION)
        _whole(self, "accumulate", 1)
        _above_zero(self, "clip_norm")
        _above_zero(self, "gradient_predivide")
        _one_of(self, "reduction", REDUCTIONS)
        _bool(self, "sync_batchnorm")
        if self.reduction == "adasum" and (self.compression != "none" or self.gradient_predivide is not None):
            _fail(self, "reduction", "average where compression or gradient_predivide is set")


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
        _whole(self, "root", 0)
        _one_of(self, "when", BROADCAST_WHEN)


@dataclass(frozen=True)
class Checkpoint:
    """Step 7: one file per epoch in ``directory``, written by rank 0 alone.

    Attributes:
        directory: Only rank 0 needs to see it.
        keep: How many of the newest files stay.
        resume: Go on from the newest complete file, if there is one.
    """

    directory: str
    keep: int = 3
    resume: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.directory, str) or not self.directory:
            _fail(self, "directory", "a folder's name")
        _whole(self, "keep", 1)
        _bool(self, "resume")


@dataclass(frozen=True)
class Average:
    """Step 8: metrics over all ranks, by sums and counts."""


@dataclass(frozen=True)
class Recipe:
    """A training job, and the eight steps that distribute it.

    ``model``, ``data``, ``loss`` and ``optimizer`` may be dicts keyed by framework. ``batch_size`` is per process and
    ``optimizer.lr`` is the rate of one process. Each of the eight steps may be None, which switches it off.

    Attributes:
        model: A callable that builds the model, or the name of one of hvdkit's own: ``mnist_cnn``, or ``resnet34``,
            which takes image size, channels and classes from the data.
        data: A callable that returns :class:`Data`, or a :class:`Data`.
        loss: A name (the model returns logits), a framework's loss object, or a callable ``(outputs, targets)``.
        optimizer: One of hvdkit's, or a callable: ``f(parameters)`` for torch, ``f()`` elsewhere.
        metrics: Names, or what the framework takes.
        steps_per_epoch: Counted for one process and divided by the number of processes; needed for endless data.
        schedule: A multiplier on the scaled rate as a function of the fractional epoch, in force after warm-up.
        stop_at: ``{metric: value}``: training stops after the epoch in which the averaged validation metric (training
            metric without validation data) reaches the value; a loss by falling, all others by rising.
        precision: ``fp32``, ``bf16`` or ``fp16``: what the model computes in, while its weights stay float32. In fp16
            the loss is scaled, and all ranks skip an update whose reduced gradient is not finite. Keras takes it as the
            dtype policy under which the model is built.
        compile: Compile the model, by ``torch.compile`` (torch only).
        observers: What watches the run beside history, progress and checkpoints.

    Raises:
        RecipeError: A field has a wrong value; the message names the field, the value and what is allowed.
    """

    model: Any
    data: Any
    loss: Any = "sparse_categorical_crossentropy"
    optimizer: Any = None
    metrics: tuple[Any, ...] = ()
    batch_size: int = 32
    epochs: int = 1
    seed: int = 0
    steps_per_epoch: int | None = None
    schedule: Callable[[float], float] | None = None
    stop_at: Mapping[str, float] | None = None
    precision: str = "fp32"
    compile: bool = False
    observers: tuple[Any, ...] = ()
    init: Init | None = field(default_factory=Init)
    pin: Pin | None = field(default_factory=Pin)
    shard: Shard | None = field(default_factory=Shard)
    scale_lr: ScaleLR | None = field(default_factory=ScaleLR)
    distribute: Distribute | None = field(default_factory=Distribute)
    broadcast: Broadcast | None = field(default_factory=Broadcast)
    checkpoint: Checkpoint | None = None
    average: Average | None = field(default_factory=Average)

    def __post_init__(self) -> None:
        self._check_sources()
        if not isinstance(self.metrics, tuple):
            _fail(self, "metrics", 'a tuple, such as ("accuracy",)')
        if not isinstance(self.observers, tuple):
            _fail(self, "observers", "a tuple of observers")
        _whole(self, "batch_size", 1)
        _whole(self, "epochs", 1)
        _whole(self, "seed", 0)
        _whole(self, "steps_per_epoch", 1, optional=True)
        if self.schedule is not None and not callable(self.schedule):
            _fail(self, "schedule", "a function of the epoch or None")
        _one_of(self, "precision", PRECISIONS)
        _bool(self, "compile")
        self._check_steps()
        self._check_stop_at()
        for name in ("model", "data", "loss", "optimizer"):
            self._check_frameworks(name)

    def _check_sources(self) -> None:
        if not (callable(self.model) or isinstance(self.model, (str, Mapping))):
            _fail(self, "model", "a callable that builds it, a name, or a dict of them by framework")
        if not (callable(self.data) or isinstance(self.data, (Data, Mapping))):
            _fail(self, "data", "an hvdkit.Data(...), a callable that returns one, or a dict of them by framework")
        if self.optimizer is None or isinstance(self.optimizer, str):
            _fail(self, "optimizer", "one of hvdkit's optimizers, a callable, or a dict of them by framework")
        if self.loss is None:
            _fail(self, "loss", "a name, a framework's loss, a callable, or a dict of them by framework")
        if isinstance(self.loss, str):
            _one_of(self, "loss", LOSSES)

    def _check_steps(self) -> None:
        for name, kind in _STEPS.items():
            value = getattr(self, name)
            if value is not None and not isinstance(value, kind):
                _fail(self, name, f"an hvdkit.{kind.__name__}(...) or None")

    def _check_stop_at(self) -> None:
        if not isinstance(self.stop_at, (Mapping, type(None))):
            _fail(self, "stop_at", 'a dict, such as {"accuracy": 0.9}, or None')
        if self.stop_at and self.average is None:
            _fail(self, "stop_at", "None where average is None: ranks would stop after different epochs")
        for metric, value in (self.stop_at or {}).items():
            if not isinstance(metric, str) or not _is_number(value):
                _fail(self, "stop_at", "a dict from metrics' names to numbers")
            if metric == "accuracy" and not 0 < value <= 1:
                _fail(self, "stop_at", f"an accuracy in 0..1 (write {value / 100:g} for {value:g} %)")

    def _check_frameworks(self, name: str) -> None:
        value = getattr(self, name)
        if isinstance(value, Mapping):
            unknown = [key for key in value if key not in FRAMEWORKS]
            if unknown or not value:
                _fail(self, name, "a dict whose keys are among " + ", ".join(FRAMEWORKS))

    def replace(self, **changes: Any) -> Recipe:
        """Return a copy with some fields changed.

        Raises:
            RecipeError: A field does not exist, or its new value is wrong.
        """
        names = {entry.name for entry in dataclasses.fields(self)}
        for name in changes:
            if name not in names:
                raise RecipeError(f"Recipe has no field {name!r}; its fields are {', '.join(sorted(names))}")
        return dataclasses.replace(self, **changes)

    def pick(self, name: str, framework: str) -> Any:
        """Return the field ``name`` for one framework, looking into a dict keyed by framework.

        Raises:
            RecipeError: The dict has no entry for this framework.
        """
        value = getattr(self, name)
        if isinstance(value, Mapping):
            if framework not in value:
                raise RecipeError(
                    f"Recipe.{name} has entries for {', '.join(value)} but not for {framework!r}; add one"
                )
            return value[framework]
        return value


_STEPS: dict[str, type] = {
    "init": Init,
    "pin": Pin,
    "shard": Shard,
    "scale_lr": ScaleLR,
    "distribute": Distribute,
    "broadcast": Broadcast,
    "checkpoint": Checkpoint,
    "average": Average,
}
