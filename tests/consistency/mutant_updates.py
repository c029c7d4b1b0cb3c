"""More faults of step 5: gradients, weights and slots of an update."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
from mutant_recipes import mutant
from mutant_tools import at_each_update, in_torch, multiply, rank, times, velocities, weights

import hvdkit


@mutant("distribute")
def gradient_of_the_last_rank_doubled() -> None:
    """One rank counts twice."""
    times(before=lambda rank, place: 1.0 + rank)


@mutant("distribute")
def gradient_of_the_last_rank_lost() -> None:
    """One rank brings zeros."""
    times(before=lambda rank, place: 1.0 - rank)


@mutant("distribute")
def one_gradient_ten_percent_off() -> None:
    """The first parameter's gradient is a tenth too large."""
    times(after=lambda rank, place: 1.1 if place == 0 else 1.0)


@mutant("distribute")
def gradient_a_thousandth_off() -> None:
    """Every gradient is a thousandth too large."""
    times(after=lambda rank, place: 1.001)


@mutant("distribute")
def last_gradient_zero() -> None:
    """The last parameter stays as it is."""
    times(after=lambda rank, place: 0.0 if place == 3 else 1.0)


@mutant("distribute")
def sign_of_one_gradient() -> None:
    """The second parameter climbs."""
    times(after=lambda rank, place: -1.0 if place == 1 else 1.0)


@mutant("distribute")
def divided_by_the_size_plus_one() -> None:
    """The mean over N + 1."""
    times(after=lambda rank, place: 2.0 / 3.0)


@mutant("distribute")
def only_the_first_rank_unpacks_right() -> None:
    """Other ranks apply half of the mean."""
    times(after=lambda rank, place: 1.0 / (1 + rank))


@mutant("distribute", distribute=hvdkit.Distribute(clip_norm=0.05))
def not_clipped() -> None:
    """The limit of the norm is not kept."""
    _clipping(lambda limit: 1e9)


@mutant("distribute", distribute=hvdkit.Distribute(clip_norm=0.05))
def clipped_to_twice_the_norm() -> None:
    """The limit is twice as large."""
    _clipping(lambda limit: 2 * limit)


def _clipping(change: Any) -> None:
    if in_torch():
        distribution = importlib.import_module("hvdkit.torch.gradients.distribution")
        clip = distribution.clip
        distribution.clip = lambda parameters, limit: clip(parameters, change(limit))
        return
    reduction = importlib.import_module("hvdkit.keras_common.gradients.reduction").Reduction
    make = reduction.__init__

    def made(self: Any, *args: Any, **options: Any) -> None:
        make(self, *args, **options)
        self._clip_norm = None if self._clip_norm is None else change(self._clip_norm)

    reduction.__init__ = made


@mutant("distribute")
def weights_drift_on_one_rank() -> None:
    """After the second update one weight of one rank is a last place off."""

    def change(trainer: Any) -> None:
        if trainer.global_step == 1 and rank():
            multiply(weights(trainer)[0], 1 + 2.0**-22)

    at_each_update(change)


@mutant("distribute")
def weights_decay_unasked() -> None:
    """Weights shrink by a ten-thousandth at every update, on all ranks."""
    at_each_update(lambda trainer: [multiply(variable, 1 - 1e-4) for variable in weights(trainer)])


@mutant("distribute")
def momentum_lost_at_the_epochs_end() -> None:
    """The optimizer starts each epoch anew."""

    def change(trainer: Any) -> None:
        if (trainer.global_step + 1) % trainer.steps_per_epoch == 0:
            for velocity in velocities(trainer):
                multiply(velocity, 0.0)

    at_each_update(change)


@mutant("distribute")
def momentum_of_one_rank_halved() -> None:
    """Slots part, weights follow one update later."""

    def change(trainer: Any) -> None:
        if rank():
            multiply(velocities(trainer)[0], 0.5)

    at_each_update(change)


@mutant("distribute")
def update_skipped_on_one_rank() -> None:
    """The third update is undone on the last rank."""
    held: list[Any] = []

    def change(trainer: Any) -> None:
        if trainer.global_step == 1:
            held[:] = [np.array(_value(variable)) for variable in weights(trainer)]
        if trainer.global_step == 2 and rank():
            for variable, value in zip(weights(trainer), held, strict=True):
                _assign(variable, value)

    at_each_update(change)


@mutant("distribute")
def update_undone_on_all_ranks() -> None:
    """The third update is undone everywhere."""
    held: list[Any] = []

    def change(trainer: Any) -> None:
        if trainer.global_step == 1:
            held[:] = [np.array(_value(variable)) for variable in weights(trainer)]
        if trainer.global_step == 2:
            for variable, value in zip(weights(trainer), held, strict=True):
                _assign(variable, value)

    at_each_update(change)


@mutant("distribute")
def weights_rounded_to_half() -> None:
    """Weights go through half precision after every update."""

    def change(trainer: Any) -> None:
        for variable in weights(trainer):
            _assign(variable, _value(variable).astype(np.float16).astype(np.float32))

    at_each_update(change)


def _value(variable: Any) -> Any:
    return variable.detach().numpy() if in_torch() else variable.numpy()


def _assign(variable: Any, value: Any) -> None:
    if in_torch():
        import torch

        variable.data.copy_(torch.from_numpy(np.array(value)))
    else:
        variable.assign(value)


@mutant("distribute", ("torch",))
def momentum_undamped_on_one_rank() -> None:
    """One rank's optimizer has another momentum, with the same gradients."""

    def change(trainer: Any) -> None:
        if rank():
            trainer.optimizer.param_groups[0]["momentum"] = 0.5

    at_each_update(change)


@mutant("distribute", ("torch",))
def gradient_of_the_update_before() -> None:
    """Each update applies the mean of the last one."""
    from hvdkit.torch.gradients.buckets import Bucket

    unpack, held = Bucket.unpack, {}

    def late(self: Any) -> None:
        flat = self.flat.clone()
        self.flat.copy_(held.get(id(self.parameters[0]), flat))
        held[id(self.parameters[0])] = flat
        unpack(self)

    Bucket.unpack = late  # type: ignore[method-assign]


@mutant("distribute", ("torch",))
def gradients_in_half_precision() -> None:
    """Gradients are rounded before they are sent, though no compression is asked for."""
    from hvdkit.torch.gradients.buckets import Bucket

    fill = Bucket.fill

    def rounded(self: Any, passes: int) -> None:
        fill(self, passes)
        self.flat.copy_(self.flat.bfloat16().float())

    Bucket.fill = rounded  # type: ignore[method-assign]


@mutant("distribute", ("torch",), distribute=hvdkit.Distribute(accumulate=2))
def first_pass_lost() -> None:
    """Of two passes only the second is averaged."""
    from hvdkit.torch.gradients.reducer import Reducer

    begin = Reducer._begin

    def forgetful(self: Any) -> Any:
        if self._passes == 1:
            for parameter in self._dense:
                parameter.grad = None
        return begin(self)

    Reducer._begin = forgetful  # type: ignore[method-assign]
