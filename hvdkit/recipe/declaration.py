"""What to train, on any number of processes: the data and the recipe.

Both are frozen and validated when they are made; nothing here imports a framework.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hvdkit.errors import RecipeError
from hvdkit.recipe.checks import fail, one_of, true_or_false, whole
from hvdkit.recipe.scheduler import Scheduler
from hvdkit.recipe.steps import Average, Broadcast, Checkpoint, Distribute, Init, Pin, ScaleLR, Shard
from hvdkit.recipe.stopping import is_target, parse_target

FRAMEWORKS = ("torch", "tf", "keras")
LOSSES = ("sparse_categorical_crossentropy", "mean_squared_error")
PRECISIONS = ("fp32", "bf16", "fp16")


@dataclass(frozen=True)
class Data:
    """What to train on.

    Attributes:
        train: Neutral arrays ``(x, y)`` (images NHWC float32, integer labels), for several inputs or outputs a tuple,
            list or dict of arrays; or the framework's own: for torch a map-style data set, a stream or a
            ``DataLoader``, for tf and keras a ``tf.data.Dataset`` of single samples, for keras a ``PyDataset``.
        validation: The same, or None.
        classes: The number of classes, when the labels are to be checked against it.
    """

    train: Any
    validation: Any = None
    classes: int | None = None

    def __post_init__(self) -> None:
        whole(self, "classes", 2, optional=True)


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
        metrics: ``"accuracy"``, functions that return the mean of a batch (of outputs and targets in torch, of targets
            and outputs elsewhere), and objects of torchmetrics or ``keras.metrics``, whose states ranks join.
        steps_per_epoch: Counted for one process and divided by the number of processes; needed for endless data.
        schedule: A multiplier on the scaled rate as a function of the fractional epoch, in force after warm-up.
        scheduler: A :class:`Scheduler`, or the callable of one that moves after each epoch (torch only; in tf and keras
            the optimizer takes a schedule object as its rate).
        stop_at: ``{metric: value}``: training stops after the epoch in which the averaged validation metric (training
            metric without validation data) reaches the value. Losses, errors and the like fall to it; accuracy, AUC and
            the like rise; for other names give ``("falling", value)`` or ``("rising", value)``.
        precision: ``fp32``, ``bf16`` or ``fp16``: what the model computes in, while its weights stay float32. In fp16
            the loss is scaled, and all ranks skip an update whose reduced gradient is not finite. Keras takes it as the
            dtype policy under which the model is built.
        compile: Compile the model, by ``torch.compile`` (torch only).
        cuda_graphs: ``auto`` records the whole update as a CUDA graph on a GPU where that can be done, and says where
            it cannot; True demands it, as far as that is known before the first update (torch only).
        observers: What watches the run beside history, progress and checkpoints.
        guard: Compare data and weights between ranks now and then, and stop where they differ.

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
    scheduler: Scheduler | Callable[..., Any] | None = None
    stop_at: Mapping[str, float | tuple[str, float]] | None = None
    precision: str = "fp32"
    compile: bool = False
    cuda_graphs: bool | str = "auto"
    observers: tuple[Any, ...] = ()
    guard: bool = True
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
            fail(self, "metrics", 'a tuple, such as ("accuracy",)')
        if not isinstance(self.observers, tuple):
            fail(self, "observers", "a tuple of observers")
        whole(self, "batch_size", 1)
        whole(self, "epochs", 1)
        whole(self, "seed", 0)
        whole(self, "steps_per_epoch", 1, optional=True)
        if self.schedule is not None and not callable(self.schedule):
            fail(self, "schedule", "a function of the epoch or None")
        self._check_scheduler()
        one_of(self, "precision", PRECISIONS)
        true_or_false(self, "compile")
        if self.cuda_graphs != "auto":
            true_or_false(self, "cuda_graphs")
        true_or_false(self, "guard")
        self._check_steps()
        self._check_stop_at()
        for name in ("model", "data", "loss", "optimizer"):
            self._check_frameworks(name)

    def _check_sources(self) -> None:
        if not (callable(self.model) or isinstance(self.model, (str, Mapping))):
            fail(self, "model", "a callable that builds it, a name, or a dict of them by framework")
        if not (callable(self.data) or isinstance(self.data, (Data, Mapping))):
            fail(self, "data", "an hvdkit.Data(...), a callable that returns one, or a dict of them by framework")
        if self.optimizer is None or isinstance(self.optimizer, str):
            fail(self, "optimizer", "one of hvdkit's optimizers, a callable, or a dict of them by framework")
        if self.loss is None:
            fail(self, "loss", "a name, a framework's loss, a callable, or a dict of them by framework")
        if isinstance(self.loss, str):
            one_of(self, "loss", LOSSES)

    def _check_scheduler(self) -> None:
        if self.scheduler is None:
            return
        if not (isinstance(self.scheduler, Scheduler) or callable(self.scheduler)):
            fail(self, "scheduler", "an hvdkit.Scheduler(...), a callable that takes the optimizer, or None")
        if self.schedule is not None:
            fail(self, "schedule", "None where there is a scheduler: two would set the rate")

    def _check_steps(self) -> None:
        for name, kind in _STEPS.items():
            value = getattr(self, name)
            if value is not None and not isinstance(value, kind):
                fail(self, name, f"an hvdkit.{kind.__name__}(...) or None")
        if self.distribute is not None and self.distribute.reduction == "sum":
            fail(self.distribute, "reduction", "average in a recipe, whose loss is the mean of a batch")

    def _check_stop_at(self) -> None:
        if not isinstance(self.stop_at, (Mapping, type(None))):
            fail(self, "stop_at", 'a dict, such as {"accuracy": 0.9}, or None')
        if self.stop_at and self.average is None:
            fail(self, "stop_at", "None where average is None: ranks would stop after different epochs")
        for metric, target in (self.stop_at or {}).items():
            if not isinstance(metric, str) or not is_target(target):
                fail(self, "stop_at", "a dict from metrics' names to numbers")
            _, value = parse_target(metric, target)
            if metric == "accuracy" and not 0 < value <= 1:
                fail(self, "stop_at", f"an accuracy in 0..1 (write {value / 100:g} for {value:g} %)")

    def _check_frameworks(self, name: str) -> None:
        value = getattr(self, name)
        if isinstance(value, Mapping):
            unknown = [key for key in value if key not in FRAMEWORKS]
            if unknown or not value:
                fail(self, name, "a dict whose keys are among " + ", ".join(FRAMEWORKS))

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
