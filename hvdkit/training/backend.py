"""The contract of the three backends; mypy holds all of them to it in ``hvdkit/__init__.py``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from hvdkit.job.files import Saved
from hvdkit.job.world import World
from hvdkit.recipe.declaration import Data
from hvdkit.training.batches import Batches
from hvdkit.training.trainer import Setup, Trainer


class Backend(Protocol):
    """The eight verbs, under the same names in every framework, and what ``apply`` needs to put them together."""

    SUFFIX: str

    def init(
        self, engine: str = "auto", guard: bool | None = None, *, report_after: float = 60.0, stuck_after: float = 600.0
    ) -> World:
        """Step 1: join the job; ``guard`` compares data and weights between ranks now and then."""

    def pin(self, threads: int | str = "auto") -> str:
        """Step 2: take this process's device, by local rank, and its share of the CPU threads."""

    def shard(
        self,
        data: Any,
        batch_size: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        uneven: str = "exact",
        accumulate: int = 1,
        steps_per_epoch: int | None = None,
        workers: int = 0,
        prefetch: int = 2,
        pin_memory: bool | str = "auto",
        train: bool = True,
    ) -> Batches:
        """Step 3: this rank's batches; with ``train=False`` each sample once, in order."""

    def evaluate(
        self, model: Any, data: Any, metrics: Any = ..., *, loss: Any = None, batch_size: int | None = None
    ) -> dict[str, float]:
        """Loss and metrics over data, exact over all ranks."""

    def gather(self, predictions: Any) -> Any:
        """Join what ranks computed on their batches of ``shard(train=False)``, in the order of the data."""

    def scale_lr(self, lr: float, rule: Any = "linear", accumulate: int = 1) -> float:
        """Step 4: the learning rate for the global batch."""

    def warmup(self, target: Any, *, base: float, steps_per_epoch: int, epochs: float = 5.0) -> Any:
        """Step 4: what raises the rate from that of one process to the scaled one, in the framework's own way."""

    def distribute(
        self,
        optimizer: Any,
        model: Any = None,
        *,
        compression: str = "none",
        accumulate: int = 1,
        clip_norm: float | None = None,
    ) -> Any:
        """Step 5: reduce gradients; the same object comes back."""

    def broadcast(self, model: Any, optimizer: Any = None, root: int = 0) -> None:
        """Step 6: one state on all ranks."""

    def synchronise_statistics(self, model: Any, also: Iterable[str] = ()) -> None:
        """Average BatchNorm's running statistics, and variables that are named, over all ranks."""

    def save(self, path: str, model: Any, optimizer: Any = None, **state: Any) -> None:
        """Step 7: write a file on rank 0; called by all ranks."""

    def restore(self, path: str, model: Any, optimizer: Any = None) -> dict[str, Any]:
        """Step 7: read a file on rank 0 and give it to all ranks."""

    def average(self, metrics: Any, count: float = 1) -> Any:
        """Step 8: metrics over all ranks, weighted by counts."""

    def default_device(self) -> str:
        """Where tensors go when step 2 is off."""

    def computing_in(self, precision: str) -> AbstractContextManager[None]:
        """Let a model that is built meanwhile compute in a precision, where that is decided when it is built."""

    def seed_all(self, seed: int) -> None:
        """Start all random generators alike on all ranks."""

    def read_random_state(self, model: Any) -> dict[str, Any]:
        """Return where this rank's random generators stand, for a file."""

    def write_random_state(self, model: Any, state: dict[str, Any]) -> None:
        """Let this rank's random generators go on from where they stood."""

    def build_model(self, source: Any, seed: int, device: str, data: Data | None = None) -> Any:
        """Build a model from a callable or a name, the same on all ranks where it has a name and fitting the data."""

    def build_optimizer(self, source: Any, model: Any) -> tuple[Any, float]:
        """Build the framework's optimizer; return it with the learning rate of one process."""

    def steps(self, batches: Batches) -> int:
        """Optimizer updates per epoch."""

    def snapshot(self, path: str, model: Any, optimizer: Any = None, **state: Any) -> Callable[[], None]:
        """Return what writes the file later, from a copy; called by all ranks."""

    def read_saved(self, path: str) -> Saved:
        """Read a checkpoint, on this rank alone."""

    def take_saved(self, read: Callable[[], Saved], model: Any, optimizer: Any = None) -> dict[str, Any]:
        """Give all ranks a checkpoint that ``read`` returns on rank 0; return its state."""

    def make_trainer(self, setup: Setup) -> Trainer:
        """Make the trainer from what the eight steps have prepared."""
