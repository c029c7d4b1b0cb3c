"""Part of step 4: a framework's own schedule of the learning rate, declared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hvdkit.recipe.checks import fail, one_of

EVERY = ("step", "epoch")


@dataclass(frozen=True)
class Scheduler:
    """A learning-rate scheduler of the framework's (torch only), and when it moves.

    It is made with the rates of one process; what it sets is multiplied by the factor of :class:`ScaleLR`, which rises
    from 1 during warm-up. So any scheduler works as on one process, also one that names rates, such as ``OneCycleLR``.

    Attributes:
        make: Takes the optimizer, and where it has a second parameter the updates of the job per epoch; returns the
            scheduler.
        every: ``epoch`` moves it after each epoch and its validation, ``step`` after each update of the job.
        metric: The averaged metric that it is given, such as ``val_loss``, for ``ReduceLROnPlateau``; needs ``epoch``.
    """

    make: Callable[..., Any]
    every: str = "epoch"
    metric: str | None = None

    def __post_init__(self) -> None:
        if not callable(self.make):
            fail(self, "make", "a callable that takes the optimizer and returns its scheduler")
        one_of(self, "every", EVERY)
        if not isinstance(self.metric, (str, type(None))):
            fail(self, "metric", "a metric's name, such as 'val_loss', or None")
        if self.metric is not None and self.every != "epoch":
            fail(self, "every", "'epoch' where a metric is named: it is known after an epoch")
