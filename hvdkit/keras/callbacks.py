"""The callbacks that Horovod's users know, for Keras 2 and Keras 3."""

from __future__ import annotations

from typing import Any

from hvdkit import world as worlds
from hvdkit.errors import RecipeError
from hvdkit.keras.metric_sums import summed_results
from hvdkit.keras_objects import variables
from hvdkit.keras_objects.optimizers import set_rate
from hvdkit.keras_objects.versions import keras
from hvdkit.plan import LearningRate

_Callback: Any = keras().callbacks.Callback


class BroadcastGlobalVariablesCallback(_Callback):
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
        self._done = False
        if self.model.built and self.model.variables:
            self._broadcast()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Broadcast after the first batch what was built by it."""
        if not self._done:
            self._broadcast()

    def _broadcast(self) -> None:
        self._done = True
        variables.broadcast(worlds.current(), self.model, self.model.optimizer, self._root)


class MetricAverageCallback(_Callback):
    """Puts metrics over all ranks in the place of this rank's, for every callback behind it and for the history.

    The metrics' own sums and counts are added, so that they are exact for unequal shards.

    Attributes:
        validation: The latest validation metrics over all ranks, as Python floats.
    """

    def __init__(self) -> None:
        super().__init__()
        self._training: dict[str, float] | None = None
        self._inside_epoch = False
        self.validation: dict[str, float] = {}

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Forget the last epoch's."""
        self._inside_epoch, self._training, self.validation = True, None, {}

    def on_test_begin(self, logs: Any = None) -> None:
        """Take the training metrics before evaluation resets them."""
        if self._inside_epoch and self._training is None:
            self._training = summed_results(self.model, worlds.current())

    def on_test_end(self, logs: Any = None) -> None:
        """Take the validation metrics."""
        self.validation = summed_results(self.model, worlds.current())
        if logs is not None:
            logs.update(self.validation)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Hand the averaged metrics on."""
        self._inside_epoch = False
        if self._training is None:
            self._training = summed_results(self.model, worlds.current())
        if logs is not None:
            logs.update(self._training)
            logs.update({f"val_{name}": value for name, value in self.validation.items()})


class LearningRateWarmupCallback(_Callback):
    """Raises the learning rate from ``initial_lr / size`` to ``initial_lr`` over the first epochs, batch by batch.

    Momentum that has the learning rate folded in is scaled along (Goyal et al., 2017, remark 2).
    """

    def __init__(
        self, initial_lr: float, warmup_epochs: float = 5.0, steps_per_epoch: int | None = None, verbose: int = 0
    ) -> None:
        super().__init__()
        self._target, self._epochs = float(initial_lr), float(warmup_epochs)
        self._steps, self._verbose = steps_per_epoch, verbose
        self._rates: LearningRate | None = None
        self._step = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Find the position in the warm-up."""
        steps = self._steps or self.params.get("steps")
        if not steps:
            raise RecipeError("LearningRateWarmupCallback: fit does not know its steps; give steps_per_epoch")
        base = self._target / worlds.current().size
        self._rates = LearningRate(base, self._target, int(steps), self._epochs)
        self._step = epoch * int(steps)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Set the rate of this batch."""
        assert self._rates is not None
        if self._step < self._rates.warmup_steps:
            set_rate(self.model.optimizer, self._rates.at(self._step))
        self._step += 1

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Say when the warm-up is done."""
        assert self._rates is not None
        if self._verbose and self._step == self._rates.warmup_steps and worlds.current().is_root:
            print(f"Epoch {epoch + 1}: finished gradual learning rate warmup to {self._target:g}.")
