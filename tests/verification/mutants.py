"""hvdkit, broken in one place at a time; each name below is a function that breaks it and returns a recipe.

hvdkit verify tests/verification/mutants.py:skip_broadcast --framework torch -np 2

A mutant is in force in every process that loads this file, so that nothing but the tool's own arithmetic is right.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import hvdkit
from hvdkit import metrics, plan, training, world

SAMPLES, FEATURES, CLASSES, BATCH = 21, 6, 3, 4


@dataclass(frozen=True)
class Mutant:
    """One fault.

    Attributes:
        step: The step that the tool must name.
        frameworks: Where the fault can be made.
        apply: Makes it.
        changes: What the recipe needs so that it matters.
        nodes: Processes are told apart as if each were on a node of its own.
    """

    step: str
    frameworks: tuple[str, ...]
    apply: Callable[[], None]
    changes: dict[str, Any]
    nodes: bool = False


MUTANTS: dict[str, Mutant] = {}
ALL = ("torch", "tf", "keras")


def mutant(step: str, frameworks: tuple[str, ...] = ALL, nodes: bool = False, **changes: Any) -> Any:
    def register(apply: Callable[[], None]) -> Callable[[], hvdkit.Recipe]:
        MUTANTS[apply.__name__] = Mutant(step, frameworks, apply, changes, nodes)
        return functools.partial(_broken, MUTANTS[apply.__name__])

    return register


def _broken(chosen: Mutant) -> hvdkit.Recipe:
    if chosen.nodes:
        os.environ["HVDKIT_NODE"] = f"node-{os.environ.get('RANK', os.environ.get('OMPI_COMM_WORLD_RANK', '0'))}"
    chosen.apply()
    return recipe.replace(**chosen.changes)


def data() -> hvdkit.Data:
    random = np.random.default_rng(7)
    x = random.normal(size=(SAMPLES + 11, FEATURES)).astype(np.float32)
    y = random.integers(0, CLASSES, SAMPLES + 11)
    return hvdkit.Data((x[:SAMPLES], y[:SAMPLES]), (x[SAMPLES:], y[SAMPLES:]))


def torch_net(normal: bool = False) -> Any:
    import torch

    middle = torch.nn.BatchNorm1d(8) if normal else torch.nn.Tanh()
    return torch.nn.Sequential(torch.nn.Linear(FEATURES, 8), middle, torch.nn.Linear(8, CLASSES))


def keras_net(normal: bool = False) -> Any:
    from hvdkit.keras_objects.versions import keras

    layers = keras().layers
    inputs = keras().Input((FEATURES,))
    middle = layers.BatchNormalization() if normal else layers.Activation("tanh")
    return keras().Model(inputs, layers.Dense(CLASSES)(middle(layers.Dense(8)(inputs))))


def nets(normal: bool) -> dict[str, Any]:
    keras_one = functools.partial(keras_net, normal)
    return {"torch": functools.partial(torch_net, normal), "tf": keras_one, "keras": keras_one}


recipe = hvdkit.Recipe(
    model=nets(False),
    data=data,
    optimizer=hvdkit.SGD(lr=0.05, momentum=0.9),
    metrics=("accuracy",),
    batch_size=BATCH,
    epochs=2,
    seed=3,
    scale_lr=hvdkit.ScaleLR("linear", warmup_epochs=1),
)
normalised = recipe.replace(model=nets(True))


def backends() -> list[Any]:
    """Return the backends that this environment can import; torch and TensorFlow never in one process."""
    framework = next((a for a in ("torch", "tf", "keras") if f"hvdkit.verification.{_side(a)}" in sys.modules), "torch")
    names = ("torch",) if framework == "torch" else ("tf", "keras")
    return [importlib.import_module(f"hvdkit.{name}") for name in names]


def _side(framework: str) -> str:
    return "torch_side" if framework == "torch" else "keras_side"


# step 3


@mutant("shard", nodes=True)
def shard_by_local_rank() -> None:
    """Two nodes with one process each take the same part."""
    split = plan.ShardPlan._split
    plan.ShardPlan._split = lambda self, block, rank: split(  # type: ignore[method-assign]
        self, block, world.current().local_rank
    )


@mutant("shard")
def same_shard() -> None:
    """All ranks take rank 0's part."""
    split = plan.ShardPlan._split
    plan.ShardPlan._split = lambda self, block, rank: split(self, block, 0)  # type: ignore[method-assign]


@mutant("shard")
def drop_last_batch() -> None:
    """The incomplete update at the end of an epoch is left out."""
    plan.ShardPlan._available = property(lambda self: max(1, self.samples // self.global_batch))  # type: ignore


@mutant("shard")
def lost_sample() -> None:
    """The last sample of every global batch is never seen."""
    split = plan.ShardPlan._split
    plan.ShardPlan._split = lambda self, block, rank: split(self, block[:-1], rank)  # type: ignore[method-assign]


@mutant("shard")
def order_by_rank() -> None:
    """Each rank shuffles in an order of its own."""
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
    split = plan.ShardPlan._split

    def changed(self: Any, block: Any, rank: int) -> Any:
        for part in split(self, block, rank):
            yield replace(part, weight=1.0)

    plan.ShardPlan._split = changed  # type: ignore[method-assign]


# step 4


@mutant("scale_lr")
def rate_not_scaled() -> None:
    """The learning rate of one process on N."""
    _everywhere("scale_factor", lambda rule, ratio: 1.0)


@mutant("scale_lr", nodes=True)
def rate_scaled_by_local_size() -> None:
    """Two nodes with one process each count as one process."""
    scale_factor = plan.scale_factor
    _everywhere(
        "scale_factor",
        lambda rule, ratio: scale_factor(rule, ratio // world.current().size * world.current().local_size),
    )


@mutant("scale_lr")
def rate_scaled_twice() -> None:
    """N squared."""
    scale_factor = plan.scale_factor
    _everywhere("scale_factor", lambda rule, ratio: scale_factor(rule, ratio) ** 2)


@mutant("scale_lr")
def no_warmup() -> None:
    """The scaled rate from the first update on."""
    plan.LearningRate.warmup_steps = property(lambda self: 0)  # type: ignore[assignment, method-assign]


def _everywhere(name: str, value: Any) -> None:
    """Replace a function in every module that has imported it, and in those that will."""
    old = getattr(plan, name)
    setattr(plan, name, value)
    backends()
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith("hvdkit") and getattr(module, name, None) is old:
            setattr(module, name, value)


# step 5


def _channels() -> list[Any]:
    names = {"torch_distributed", "torch_mpi", "torch_horovod", "tf_mpi", "tf_horovod"}
    found = []
    for name in names:
        if (name.startswith("torch")) == (backends()[0].__name__ == "hvdkit.torch"):
            try:
                module = importlib.import_module(f"hvdkit.channels.{name}")
            except ImportError:
                continue
            found += [value for value in vars(module).values() if getattr(value, "__module__", "") == module.__name__]
    return [value for value in found if isinstance(value, type)]


@mutant("distribute")
def not_reduced() -> None:
    """Every rank trains on its own gradients."""
    for channel in _channels():
        channel.start_allreduce = lambda self, flat: ("kept", flat)
        channel.start_mean = channel.start_allreduce
        channel.wait = lambda self, handle: handle[1]


@mutant("distribute")
def sum_instead_of_mean() -> None:
    """Gradients are N times too large."""
    _scale_gradients(lambda size: float(size))


@mutant("distribute")
def averaged_twice() -> None:
    """Gradients are N times too small."""
    _scale_gradients(lambda size: 1.0 / size)


def _scale_gradients(factor: Callable[[int], float]) -> None:
    if backends()[0].__name__ == "hvdkit.torch":
        from hvdkit.torch.buckets import Bucket

        unpack = Bucket.unpack

        def scaled(self: Any) -> None:
            self._wire.mul_(factor(world.current().size))
            unpack(self)

        Bucket.unpack = scaled  # type: ignore[method-assign]
        return
    from hvdkit.keras_objects.reduction import Reduction

    average = Reduction._average
    Reduction._average = lambda self, gradients: [  # type: ignore[method-assign]
        gradient * factor(world.current().size) for gradient in average(self, gradients)
    ]


@mutant("distribute")
def one_gradient_not_reduced() -> None:
    """The first parameter keeps its own gradient."""
    if backends()[0].__name__ == "hvdkit.torch":
        from hvdkit.torch.reducer import Reducer

        init = Reducer.__init__

        def without_first(self: Any, world: Any, channel: Any, named: Any, sparse: Any, **settings: Any) -> None:
            init(self, world, channel, dict(list(named.items())[1:]), sparse, **settings)

        Reducer.__init__ = without_first  # type: ignore[method-assign]
        return
    from hvdkit.keras_objects.reduction import Reduction

    average = Reduction._average
    Reduction._average = (
        lambda self, gradients: [  # type: ignore[method-assign]
            gradients[0],
            *average(self, gradients)[1:],
        ]
    )


@mutant("distribute", ("torch",), distribute=hvdkit.Distribute(clip_norm=0.1))
def clipped_before_the_reduction() -> None:
    """Each rank clips its own gradient."""
    from hvdkit.torch import distribution
    from hvdkit.torch.buckets import Bucket

    clip, fill = distribution.clip, Bucket.fill
    distribution.clip = lambda parameters, limit: None

    def clipped(self: Any, *args: Any) -> Any:
        clip(self.parameters, 0.1)
        return fill(self, *args)

    Bucket.fill = clipped  # type: ignore[method-assign]


@mutant("distribute", ("torch",), distribute=hvdkit.Distribute(accumulate=2))
def passes_summed() -> None:
    """Accumulated passes are added up, not averaged."""
    from hvdkit.torch.buckets import Bucket

    fill = Bucket.fill
    Bucket.fill = lambda self, passes, *args: fill(self, 1, *args)  # type: ignore[method-assign]


@mutant("distribute", ("keras",))
def samples_not_counted() -> None:
    """Ranks with a short batch weigh as much as the others."""
    distribution = importlib.import_module("hvdkit.keras_objects.distribution")
    distribution.note_samples = lambda model, reduction: None


# step 6


@mutant("broadcast")
def skip_broadcast() -> None:
    """Every rank starts from its own weights."""
    for backend in backends():
        backend.broadcast = lambda model, optimizer=None, root=0: None


@mutant("broadcast", model=nets(True))
def forget_buffers() -> None:
    """BatchNorm's statistics stay each rank's own at the start."""
    if backends()[0].__name__ == "hvdkit.torch":
        module = importlib.import_module("hvdkit.torch.synchronising")
        module.named_tensors = lambda model: model.named_parameters()
        return
    variables = importlib.import_module("hvdkit.keras_objects.variables")
    everything = variables.model_variables

    def trained(model: Any) -> Any:
        kept = {id(variable) for variable in model.trainable_variables}
        return {name: value for name, value in everything(model).items() if id(value) in kept}

    variables.model_variables = trained


@mutant("broadcast", broadcast=hvdkit.Broadcast(when="after_first_step"))
def broadcast_after_the_first_step() -> None:
    """Horovod's habit: the first update is made from different weights."""


@mutant("broadcast", ("torch",))
def optimizer_stepped_by_the_broadcast() -> None:
    """Optimizer state is made by a step with zero gradients, as stock Horovod does."""
    for backend in backends():
        broadcast = backend.broadcast

        def stepping(model: Any, optimizer: Any = None, root: int = 0, send: Any = broadcast) -> None:
            for parameter in model.parameters():
                parameter.grad = parameter.detach() * 0
            optimizer.step()
            send(model, optimizer, root)

        backend.broadcast = stepping


# step 7


@mutant("checkpoint")
def optimizer_not_restored() -> None:
    """A resumed run starts with an empty optimizer."""
    _restore_without("optimizer")


@mutant("checkpoint")
def position_not_restored() -> None:
    """A resumed run starts its learning rate and order anew."""
    training.Trainer._take_position = lambda self, state: None  # type: ignore[method-assign]


def _restore_without(part: str) -> None:
    names = {"hvdkit.torch": "hvdkit.torch.trainer", "hvdkit.tf": "hvdkit.tf.trainer"}
    for name in (names[backends()[0].__name__], "hvdkit.keras.trainer"):
        if name.startswith("hvdkit.keras") and backends()[0].__name__ == "hvdkit.torch":
            continue
        module = importlib.import_module(name)
        restore = module.restore
        module.restore = lambda path, model, optimizer=None, read=restore: read(path, model)


# step 8


@mutant("average")
def metrics_not_averaged() -> None:
    """Every rank reports its own metrics."""
    metrics.Sums.over_ranks = lambda self, world: self  # type: ignore[method-assign]
    if backends()[0].__name__ != "hvdkit.torch":
        importlib.import_module("hvdkit.keras.metric_sums")._sums = lambda world, local: local


@mutant("average", ("torch", "tf"))
def mean_of_means() -> None:
    """Ranks with few samples count as much as the others."""

    def over_ranks(self: Any, world: Any) -> Any:
        joined = metrics.Sums()
        for totals in world.engine.allgather_object(self._totals):
            for name, (total, count) in totals.items():
                joined.add(name, total / count, 1)
        return joined

    metrics.Sums.over_ranks = over_ranks  # type: ignore[method-assign]


@mutant("average", ("keras",))
def sums_averaged_not_added() -> None:
    """Sums are averaged and counts are not: metrics N times too small."""
    module = importlib.import_module("hvdkit.keras.metric_sums")
    sums = module._sums

    def halved(world: Any, local: list[Any]) -> list[Any]:
        added = sums(world, local)
        return [value / 2 if number % 2 == 0 else value for number, value in enumerate(added)]

    module._sums = halved


@mutant("average", model=nets(True))
def statistics_not_averaged() -> None:
    """BatchNorm's statistics are each rank's own when they are evaluated and saved."""
    if backends()[0].__name__ == "hvdkit.torch":
        for name in ("hvdkit.torch.trainer", "hvdkit.torch.checkpointing"):
            importlib.import_module(name).average_buffers = lambda model: None
        return
    for name in ("hvdkit.keras_objects.files", "hvdkit.tf.trainer", "hvdkit.keras.trainer"):
        importlib.import_module(name).average_statistics = lambda model: None
