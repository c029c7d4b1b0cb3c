"""Faults of step 5."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from typing import Any

from mutant_recipes import backends, mutant

import hvdkit
from hvdkit.engines.table import SPECS
from hvdkit.job import world


def _channels() -> list[Any]:
    library = "torch" if backends()[0].__name__ == "hvdkit.torch" else "tf"
    found = []
    for spec in SPECS:
        module, _, name = spec.channels.get(library, "").partition(":")
        if spec.is_alone or not name:
            continue
        with contextlib.suppress(ImportError):
            found.append(getattr(importlib.import_module(module), name))
    return found


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
        from hvdkit.torch.gradients.buckets import Bucket

        unpack = Bucket.unpack

        def scaled(self: Any) -> None:
            self.flat.mul_(factor(world.current().size))
            unpack(self)

        Bucket.unpack = scaled  # type: ignore[method-assign]
        return
    from hvdkit.keras_common.gradients.reduction import Reduction

    average = Reduction._average
    Reduction._average = lambda self, gradients: [  # type: ignore[method-assign]
        gradient * factor(world.current().size) for gradient in average(self, gradients)
    ]


@mutant("distribute")
def one_gradient_not_reduced() -> None:
    """The first parameter keeps its own gradient."""
    if backends()[0].__name__ == "hvdkit.torch":
        from hvdkit.torch.gradients.reducer import Reducer

        add = Reducer.add

        def without_first(self: Any, named: Any, sparse: set[int]) -> None:
            add(self, dict(list(named.items())[1:]), sparse)

        Reducer.add = without_first  # type: ignore[method-assign]
        return
    from hvdkit.keras_common.gradients.reduction import Reduction

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
    from hvdkit.torch.gradients import distribution
    from hvdkit.torch.gradients.buckets import Bucket

    clip, fill = distribution.clip, Bucket.fill
    distribution.clip = lambda parameters, limit: None

    def clipped(self: Any, passes: int) -> None:
        clip(self.parameters, 0.1)
        fill(self, passes)

    Bucket.fill = clipped  # type: ignore[method-assign]


@mutant("distribute", ("torch",), distribute=hvdkit.Distribute(accumulate=2))
def passes_summed() -> None:
    """Accumulated passes are added up, not averaged."""
    from hvdkit.torch.gradients.buckets import Bucket

    fill = Bucket.fill
    Bucket.fill = lambda self, passes: fill(self, 1)  # type: ignore[method-assign]


@mutant("distribute", ("keras",))
def samples_not_counted() -> None:
    """Ranks with a short batch weigh as much as the others."""
    distribution = importlib.import_module("hvdkit.keras_common.gradients.distribution")
    distribution.note_samples = lambda model, reduction: None
