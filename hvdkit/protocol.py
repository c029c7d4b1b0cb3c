"""The contract of the three backends, which mypy checks against ``hvdkit.torch``, ``hvdkit.tf`` and ``hvdkit.keras``."""

from __future__ import annotations

from typing import Any, Protocol

from hvdkit.recipe import Recipe
from hvdkit.training import Trainer
from hvdkit.world import World


class Backend(Protocol):
    """The eight verbs, under the same names in every framework, and what ``apply`` needs to put them together."""

    @staticmethod
    def init(engine: str = "auto") -> World:
        """Step 1: join the job."""

    @staticmethod
    def pin(threads: int | str = "auto") -> str:
        """Step 2: take this process's device, by local rank, and its share of the CPU threads."""

    @staticmethod
    def shard(
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
    ) -> Any:
        """Step 3: this rank's batches."""

    @staticmethod
    def scale_lr(lr: float, rule: Any = "linear", accumulate: int = 1) -> float:
        """Step 4: the learning rate for the global batch."""

    @staticmethod
    def distribute(
        optimizer: Any,
        model: Any = None,
        *,
        compression: str = "none",
        accumulate: int = 1,
        clip_norm: float | None = None,
    ) -> Any:
        """Step 5: reduce gradients; the same object comes back."""

    @staticmethod
    def broadcast(model: Any, optimizer: Any = None, root: int = 0) -> None:
        """Step 6: one state on all ranks."""

    @staticmethod
    def save(path: str, model: Any, optimizer: Any = None, **state: Any) -> None:
        """Step 7: write a file on rank 0; called by all ranks."""

    @staticmethod
    def restore(path: str, model: Any, optimizer: Any = None) -> dict[str, Any]:
        """Step 7: read a file on rank 0 and give it to all ranks."""

    @staticmethod
    def average(metrics: Any, count: float = 1) -> Any:
        """Step 8: metrics over all ranks, weighted by counts."""

    @staticmethod
    def make_trainer(recipe: Recipe) -> Trainer:
        """Walk the steps of a recipe in the order that is right for this framework."""
