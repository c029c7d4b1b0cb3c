"""The callbacks that Horovod's users know, for Keras 2 and Keras 3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hvdkit.job import world as worlds
from hvdkit.keras.fit_guard import GuardedCallback, is_distributed
from hvdkit.keras.metric_sums import check_rules, summed_results
from hvdkit.keras.rate_callbacks import LearningRateScheduleCallback, LearningRateWarmupCallback
from hvdkit.keras_common.state import variables
from hvdkit.keras_common.state.files import average_statistics
from hvdkit.keras_common.trained import has_own_step, is_built

__all__ = [
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]


class BroadcastGlobalVariablesCallback(GuardedCallback):
    """Gives every rank the model and optimizer variables of ``root_rank``, before the first step.

    A model that is only built by its first batch gets them after that batch; call it on a batch before ``fit`` to have
    the first step right too.
    """

    def __init__(self, root_rank: int = 0) -> None:
        super().__init__()
        self._root = root_rank
        self._done = False

    def on_train_begin(self, logs: Any = None) -> None:
        """Broadcast, if the model is built."""
        super().on_train_begin(logs)
        self._done = False
        if is_built(self.model) and self.model.variables:
            self._broadcast()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Broadcast after the first batch what was built by it."""
        if not self._done:
            self._broadcast()
        super().on_train_batch_end(batch, logs)

    def _broadcast(self) -> None:
        self._done = True
        # one that a train_step of its own leaves unused needs no slots
        optimizer = (
            None if has_own_step(self.model) and not is_distributed(self.model.optimizer) else self.model.optimizer
        )
        variables.broadcast(worlds.current(), self.model, optimizer, self._root)


class MetricAverageCallback(GuardedCallback):
    """Puts metrics over all ranks in the place of this rank's, for every callback behind it and for the history.

    The metrics' own sums and counts are added, so that they are exact for unequal shards. BatchNorm's running
    statistics are averaged over all ranks before they are evaluated, and at the end of every epoch.

    Args:
        rules: How to join metrics whose state cannot be added up, by their names: ``max`` or ``min``; ``sum`` vouches
            for a custom metric that can.

    Attributes:
        validation: The latest validation metrics over all ranks, as Python floats.

    Raises:
        RecipeError: A rule is unknown.
    """

    def __init__(self, rules: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self._rules = check_rules(rules or {})
        self._training: dict[str, float] | None = None
        self._inside_epoch = False
        self.validation: dict[str, float] = {}

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Forget the last epoch's."""
        super().on_epoch_begin(epoch, logs)
        self._inside_epoch, self._training, self.validation = True, None, {}

    def on_test_begin(self, logs: Any = None) -> None:
        """Take the training metrics before evaluation resets them."""
        if self._inside_epoch:
            self._end_training()

    def on_test_end(self, logs: Any = None) -> None:
        """Take the validation metrics."""
        self.validation = summed_results(self.model, worlds.current(), self._rules)
        if logs is not None:
            logs.update(self.validation)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Hand the averaged metrics on."""
        self._inside_epoch = False
        training = self._end_training()
        if logs is not None:
            logs.update(training)
            logs.update({f"val_{name}": value for name, value in self.validation.items()})

    def _end_training(self) -> dict[str, float]:
        """Return the training metrics of this epoch, the first time with the statistics averaged."""
        if self._training is None:
            self._training = summed_results(self.model, worlds.current(), self._rules)
            average_statistics(self.model)
        return self._training
