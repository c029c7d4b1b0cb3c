"""The part of a training run that is the same in every framework; the loop's body lives in each backend."""

from __future__ import annotations

import functools
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from hvdkit.errors import CheckpointError, DataError, RecipeError
from hvdkit.job.files import Saved, batch_for
from hvdkit.job.world import World
from hvdkit.recipe.declaration import Recipe
from hvdkit.recipe.fingerprint import fingerprint
from hvdkit.recipe.plan import LearningRate
from hvdkit.recipe.steps import Shard
from hvdkit.recipe.stopping import FALLING, direction_of, parse_target
from hvdkit.recipe.support import torch_only
from hvdkit.recipe.trees import leaves
from hvdkit.training.batch import as_pair
from hvdkit.training.batches import Batch, Batches
from hvdkit.training.checkpoint_writer import CheckpointWriter
from hvdkit.training.checks import check_loss
from hvdkit.training.evaluation_batches import evaluation_of
from hvdkit.training.observers import History, Observer, Progress, Record, say
from hvdkit.training.time_limit import TimeLimit

if TYPE_CHECKING:
    from hvdkit.training.backend import Backend


@dataclass(frozen=True)
class Setup:
    """What the eight steps have made of a recipe."""

    backend: Backend
    recipe: Recipe
    world: World
    device: str
    batches: Batches
    validation: Any
    rates: LearningRate
    model: Any
    optimizer: Any
    batch_size: int
    started: float


class Trainer(ABC):
    """A distributed training run, the same on all ranks.

    Attributes:
        recipe: What is trained.
        world: The processes.
        model: The framework's model.
        optimizer: The framework's optimizer, of its own class.
        history: Averaged metrics of every epoch.
        epoch: Finished epochs.
        global_step: Optimizer updates so far.
    """

    framework: ClassVar[str]
    resumes_inside_epochs: ClassVar[bool] = False

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self.recipe, self.world = setup.recipe, setup.world
        self.model, self.optimizer = setup.model, setup.optimizer
        self.batches = setup.batches
        self.rates = setup.rates
        self.history = History()
        self.epoch = 0
        self.global_step = 0
        self._passes = 0
        self._in_epoch, self._steps_into_epoch = False, 0
        self._stop = False
        self._validation_batches: Any = None
        self._observers: list[Observer] = [self.history, Progress(), *self.recipe.observers]
        if self.recipe.checkpoint is not None:
            writer = CheckpointWriter(self.recipe.checkpoint)
            self._observers += [TimeLimit(writer), writer]

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer updates per epoch, the same on every rank."""
        return self.rates.steps

    @property
    def steps_into_epoch(self) -> int:
        """Optimizer updates in the epoch that runs; 0 between epochs."""
        return self._steps_into_epoch

    @property
    def only_whole_epochs(self) -> str:
        """Why a run cannot go on inside an epoch; empty if it can."""
        return "" if self.resumes_inside_epochs else f"{self.framework} can only begin whole epochs"

    @property
    def global_batch(self) -> int:
        """Samples per update over all ranks."""
        return self._setup.batch_size * self.world.size * self.accumulate

    @property
    def accumulate(self) -> int:
        """Micro-batches per update."""
        return self.recipe.distribute.accumulate if self.recipe.distribute else 1

    def fit(self, epochs: int | None = None) -> History:
        """Train until ``epochs`` epochs are finished in all (the recipe's number if None).

        Returns:
            The history, the same on every rank.
        """
        self._check_metrics_named()
        self._announce("on_fit_begin")
        last = self.recipe.epochs if epochs is None else epochs
        if self.epoch < last and not self._stop:
            self._run_epochs(last)
        elif self.world.is_root:
            why = "stop_at was reached" if self._stop else f"{self.epoch} of {last} epochs are done"
            say(f"hvdkit: finished already: {why}")
        self._announce("on_fit_end")
        return self.history

    @abstractmethod
    def _run_epochs(self, last: int) -> None:
        """Train the epochs from ``self.epoch`` to ``last``, calling the ``_begin``/``_end`` methods below."""

    def evaluate(self, data: Any = None) -> dict[str, float]:
        """Return the loss and metrics over ``data`` (the validation data if None), over all ranks, by counts.

        Raises:
            DataError: There are no data.
        """
        data = self._setup.validation if data is None else data
        if data is None:
            raise DataError("there are no validation data; give Data(validation=...) or evaluate(data)")
        return self._evaluate(data)

    @abstractmethod
    def _evaluate(self, data: Any) -> dict[str, float]:
        """Evaluate on data of the framework's or neutral arrays."""

    def _evaluation_batches(self, data: Any) -> Any:
        """Return this rank's part of validation data, in order, each sample on one rank only; laid out once."""
        if data is not self._setup.validation:
            return self._laid_out(data)
        if self._validation_batches is None:
            self._validation_batches = self._laid_out(data)
        return self._validation_batches

    def _laid_out(self, data: Any) -> Any:
        settings = torch_only(self.recipe.shard or Shard(), self.framework)
        shard = functools.partial(self._setup.backend.shard, data, self._setup.batch_size, train=False, **settings)
        return evaluation_of(data, shard)

    @abstractmethod
    def predict(self, inputs: Any) -> Any:
        """Return the model's outputs, a NumPy array, for neutral inputs; each rank predicts what it is given."""

    def step(self, batch: Any) -> dict[str, float]:
        """Train on one batch of this rank; every ``accumulate``-th one is followed by the update, as in ``fit``.

        Args:
            batch: A pair ``(x, y)`` of tensors or arrays, or a batch of ``trainer.batches``, which brings its weight.

        Returns:
            This rank's loss and metrics.
        """
        if not isinstance(batch, Batch):
            last = (self._passes + 1) % self.accumulate == 0
            batch = Batch.of(batch, len(next(leaves(batch))), last=last)
        batch = as_pair(batch)
        self._passes = 0 if batch.last else self._passes + 1
        measured = self._train_on(batch)
        if batch.last:
            self._end_step()
        return measured

    @abstractmethod
    def _train_on(self, batch: Batch) -> dict[str, float]:
        """Do one pass on a batch and, after the last one of an update, that; return this rank's loss and metrics."""

    @property
    def suffix(self) -> str:
        """The ending of this framework's checkpoint files."""
        return self._setup.backend.SUFFIX

    def save(self, path: str) -> None:
        """Write model, optimizer and position on rank 0; called by all ranks."""
        self._setup.backend.save(path, self.model, self.optimizer, **self._position())

    def snapshot(self, path: str) -> Callable[[], None]:
        """Return what writes, on rank 0, the file that :meth:`save` would write now; called by all ranks."""
        return self._setup.backend.snapshot(path, self.model, self.optimizer, **self._position())

    def restore(self, path: str) -> None:
        """Continue from a file that rank 0 sees; called by all ranks.

        Raises:
            CheckpointError: The file is damaged, does not fit, was saved with another global batch, or inside an epoch.
        """
        self._continue(lambda: self._setup.backend.read_saved(path))

    def resume(self, saved: Saved | None) -> None:
        """Continue from a checkpoint that rank 0 has read; called by all ranks."""

        def read() -> Saved:
            assert saved is not None  # on rank 0, where alone this is called
            return saved

        self._continue(read)

    def _continue(self, read: Callable[[], Saved]) -> None:
        def checked() -> Saved:
            saved = read()
            self._check_position(saved)
            return saved

        self._take_position(self._setup.backend.take_saved(checked, self.model, self.optimizer))

    def _check_position(self, saved: Saved) -> None:
        batch, steps = saved.state["global_batch"], saved.state.get("steps_into_epoch", 0)
        if batch != self.global_batch:
            raise CheckpointError(
                f"checkpoint {saved.path} was saved with a global batch of {batch}, this trainer has one of "
                f"{self.global_batch}; set batch_size so that they are equal, or resume by Recipe(checkpoint=...)"
            )
        if steps and not self.resumes_inside_epochs:
            raise CheckpointError(
                f"checkpoint {saved.path} was saved {steps} steps into an epoch, and {self.framework} can only begin "
                "whole ones; resume from a file that was saved after an epoch"
            )

    @abstractmethod
    def weights(self) -> dict[str, Any]:
        """Return this rank's parameters and buffers as named NumPy arrays."""

    def shutdown(self) -> None:
        """Leave the job; called by all ranks. At exit it is called by itself."""
        self.world.shutdown()

    def seconds(self) -> float:
        """Return the seconds since ``apply`` was called."""
        return time.perf_counter() - self._setup.started

    def summary(self) -> str:
        """Return what runs and how, for people."""
        samples = f"{self._setup.batch_size} per process"
        if self.accumulate > 1:
            samples += f" x {self.accumulate} passes"
        rate = f"{self.rates.target:g}"
        if self.rates.warmup_steps:
            rate = f"{self.rates.base:g} rising to {rate} over {self.rates.warmup_steps} steps"
        elif self.rates.target != self.rates.base:
            rate += f" ({self.rates.base:g} x {self.rates.target / self.rates.base:g})"
        return "\n".join(
            [
                f"hvdkit: {self.framework} on {self._setup.device}, {self.world.size} process(es) on "
                f"{self.world.nodes} node(s), engine {self.world.engine.name} ({self.world.reason})",
                f"hvdkit: batch {samples}, global batch {self.global_batch}, "
                f"{self.steps_per_epoch} steps per epoch, learning rate {rate}{self._how()}{self._dropped()}",
            ]
        )

    def _how(self) -> str:
        """Say how updates are computed, for the summary."""
        how = "" if self.recipe.precision == "fp32" else f", precision {self.recipe.precision}"
        return how + (", compiled" if self.recipe.compile else "")

    def _dropped(self) -> str:
        """Say how many samples are left out of every epoch, for the summary."""
        dropped, taken = self.batches.dropped, self.batches.samples
        return f", {dropped} of {dropped + (taken or 0)} samples dropped in every epoch" if dropped else ""

    def _announce(self, event: str, *arguments: Any) -> None:
        for observer in self._observers:
            getattr(observer, event)(self, *arguments)

    def _begin_epoch(self) -> float:
        self.batches.set_epoch(self.epoch)
        self._announce("on_epoch_begin")
        self._in_epoch = True
        return time.perf_counter()

    def _end_step(self) -> None:
        late = self.recipe.broadcast
        if self.global_step == 0 and late is not None and late.when == "after_first_step":
            self._setup.backend.broadcast(self.model, self.optimizer, late.root)
        self.global_step += 1
        self._steps_into_epoch += self._in_epoch
        self._announce("on_step_end")

    def _end_epoch(self, metrics: dict[str, float], validation: dict[str, float], samples: float, spent: float) -> None:
        """Make the record of an epoch from metrics that are already averaged, and tell the observers.

        Args:
            metrics: Averaged training metrics.
            validation: Averaged validation metrics; empty without validation data.
            samples: Training samples of all ranks.
            spent: This rank's seconds.

        Raises:
            ModelError: The training loss is NaN; nothing is written then.
        """
        self._in_epoch, self._steps_into_epoch = False, 0
        check_loss(metrics.get("loss", 0.0))
        slowest = float(self.world.allreduce(spent, "max"))
        self.epoch += 1
        record: Record = {
            "epoch": self.epoch,
            **metrics,
            **{f"val_{name}": value for name, value in validation.items()},
            "seconds": slowest,
            "samples_per_second": samples / slowest,
            "learning_rate": self._last_rate(),
            **self._counts(),
        }
        self._stop = self._reached(record)
        self._note_epoch(record)
        self._announce("on_epoch_end", record)

    def _last_rate(self) -> float:
        """Return the learning rate of the last update."""
        return self.rates.at(self.global_step - 1)

    def _note_epoch(self, record: Record) -> None:  # noqa: B027 - most trainers have nothing to do
        """Do what follows from an epoch's averaged metrics, before its checkpoint is written."""

    def _counts(self) -> dict[str, int]:
        """Return what else was counted in this epoch, over all ranks; called by all ranks."""
        return {}

    def _metric_names(self) -> list[str] | None:
        """Return the names of the metrics, where they are known before the first epoch ends."""
        return None

    def _check_metrics_named(self) -> None:
        known = self._metric_names()
        if known is None:
            return
        for name in self.recipe.stop_at or ():
            if name.removeprefix("val_") not in known:
                raise _no_such_metric("Recipe.stop_at", name, known)
        best = direction_of(self.recipe.checkpoint.best) if self.recipe.checkpoint else None
        if best is not None and best[1].removeprefix("val_") not in known:
            raise _no_such_metric("Checkpoint.best", best[1], known)

    def _reached(self, record: Record) -> bool:
        """Say whether an averaged metric has reached its target; all ranks hold the same record."""
        for name, target in (self.recipe.stop_at or {}).items():
            value = record.get(f"val_{name}", record.get(name))
            if value is None:
                raise _no_such_metric("Recipe.stop_at", name, [known for known in record if known not in _NO_METRICS])
            direction, limit = parse_target(name, target)
            if value <= limit if direction == FALLING else value >= limit:
                return True
        return False

    def _position(self) -> dict[str, Any]:
        """Return what a checkpoint holds beside model and optimizer."""
        return {
            "framework": self.framework,
            "epoch": self.epoch,
            "step": self.global_step,
            "samples": self.global_step * self.global_batch,
            "global_batch": self.global_batch,
            "steps_into_epoch": self._steps_into_epoch,
            "learning_rate": {"base": self.rates.base, "target": self.rates.target},
            "history": self.history.epochs,
            "recipe": fingerprint(self.recipe, self.framework),
            "random": self.world.engine.allgather_object(self._setup.backend.read_random_state(self.model)),
        }

    def _take_position(self, state: dict[str, Any]) -> None:
        self.epoch, self.global_step = state["epoch"], state["step"]
        self.history.epochs = list(state["history"])
        self._stop = bool(self.history.epochs) and self._reached(self.history.epochs[-1])
        self.rates = replace(self.rates, **state["learning_rate"])
        self._take_random_state(state, "random")

    def _take_random_state(self, state: dict[str, Any], name: str) -> None:
        """Let this rank draw on from where it stood; ranks of another number draw from streams of their own."""
        states = state.get(name, [])
        if len(states) == self.world.size:
            self._setup.backend.write_random_state(self.model, states[self.world.rank])


_NO_METRICS = ("epoch", "seconds", "samples_per_second", "learning_rate")


def _no_such_metric(field: str, name: str, known: list[str]) -> RecipeError:
    return RecipeError(f"{field} names {name!r}, but there is no such metric; there are {', '.join(known)}")


def resumed_batch_size(recipe: Recipe, size: int, saved: dict[str, Any] | None) -> int:
    """Return the per-process batch size: the recipe's, or what keeps a saved global batch.

    Raises:
        CheckpointError: This number of processes cannot share the saved global batch.
    """
    if saved is None:
        return recipe.batch_size
    accumulate = recipe.distribute.accumulate if recipe.distribute else 1
    return batch_for(saved["global_batch"], size, accumulate)
