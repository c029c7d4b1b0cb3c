"""A training run by a loop of hvdkit's own, for frameworks without ``fit``."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

from hvdkit.errors import CheckpointError
from hvdkit.job.files import Saved
from hvdkit.job.metrics import Sums
from hvdkit.training.batches import Batch, LoopBatches, pairs
from hvdkit.training.metric_objects import MetricObjects
from hvdkit.training.trainer import Setup, Trainer


class LoopTrainer(Trainer):
    """A trainer with a custom loop."""

    batches: LoopBatches
    resumes_inside_epochs: ClassVar[bool] = True
    _objects: MetricObjects

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._resumed_at = 0
        self._earlier = Sums()
        self._random_of_epoch: dict[str, Any] = {}
        self._resumed: dict[str, Any] = {}

    @property
    def only_whole_epochs(self) -> str:
        """Why a run cannot go on inside an epoch; empty if it can."""
        names = ", ".join(self._objects.names)
        return f"the state of {names} is not saved inside an epoch" if names else ""

    def _run_epochs(self, last: int) -> None:
        while self.epoch < last and not self._stop:
            # what loads samples draws from here on, and so it must behind a resume inside the epoch
            self._random_of_epoch = self._setup.backend.read_random_state(self.model)
            began = self._begin_epoch()
            self._objects.reset()
            self._train_epoch()
            spent = time.perf_counter() - began
            joined = self._sums_over_ranks()
            self._resumed_at, self._earlier = 0, Sums()
            metrics = joined.means() | self._objects.results(None if self.recipe.average is None else self.world)
            validation = self._validate()
            self._end_epoch(metrics, validation, joined.count("loss"), spent)

    def _train_epoch(self) -> None:
        self._start_sums(self._earlier)
        self._steps_into_epoch = self._resumed_at
        for batch in self._due():
            self._announce("on_batch", batch)
            self._pass(batch)
            if batch.last:
                self._end_step()

    def _due(self) -> Iterator[Batch]:
        """Yield the batches of an epoch, but for updates that were done before a file was saved inside it."""
        done = 0
        for batch in pairs(self.batches):
            if done >= self._resumed_at:
                yield batch
            done += batch.last
            if done == self._resumed_at:
                self._take_random_state(self._resumed, "random")
                self._resumed = {}

    def _sums_over_ranks(self) -> Sums:
        return self._sums() if self.recipe.average is None else self._sums().over_ranks(self.world)

    def _check_position(self, saved: Saved) -> None:
        super()._check_position(saved)
        if saved.state.get("steps_into_epoch", 0) and self._objects.names:
            raise CheckpointError(
                f"checkpoint {saved.path} was saved inside an epoch, without the state of "
                f"{', '.join(self._objects.names)}; resume from a file that was saved after an epoch"
            )

    def _train_on(self, batch: Batch) -> dict[str, float]:
        self._start_sums(Sums())
        with self._objects.apart():
            self._pass(batch)
            return self._sums().means() | self._objects.results(None)

    @abstractmethod
    def _start_sums(self, earlier: Sums) -> None:
        """Start the sums of an epoch from those of its batches before a resume."""

    @abstractmethod
    def _sums(self) -> Sums:
        """Return this rank's sums of the epoch so far."""

    @abstractmethod
    def _pass(self, batch: Batch) -> None:
        """Do one pass on a batch and, after the last one of an update, that; add to the sums."""

    def _position(self) -> dict[str, Any]:
        position = super()._position()
        if not self._steps_into_epoch:
            return position
        gathered = self.world.engine.allgather_object((self._sums().totals(), self._random_of_epoch))
        return {**position, "sums": [sums for sums, _ in gathered], "random_of_epoch": [state for _, state in gathered]}

    def _take_position(self, state: dict[str, Any]) -> None:
        super()._take_position(state)
        self._resumed_at = state.get("steps_into_epoch", 0)
        self._earlier = Sums()
        self._resumed = {"random": state.get("random", [])} if self._resumed_at else {}
        self._take_random_state(state, "random_of_epoch")
        sums = state["sums"] if self._resumed_at else []
        # each rank adds to its own, in the order of a run without a resume; of another number of ranks the first to all
        if len(sums) == self.world.size:
            sums = sums[self.world.rank : self.world.rank + 1]
        elif not self.world.is_root:
            sums = []
        for totals in sums:
            self._earlier.add_totals(totals)

    def _validate(self) -> dict[str, float]:
        if self._setup.validation is not None:
            return self.evaluate()
        self._setup.backend.synchronise_statistics(self.model)
        return {}
