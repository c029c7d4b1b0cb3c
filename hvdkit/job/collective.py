"""Names the verb that ranks are in, so that what they disagree about is called by it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from hvdkit.job import world as worlds

P = ParamSpec("P")
R = TypeVar("R")


def on_all_ranks(verb: Callable[P, R]) -> Callable[P, R]:
    """Mark a function that all ranks must call."""

    @functools.wraps(verb)
    def named(*args: P.args, **kwargs: P.kwargs) -> R:
        with worlds.current().engine.inside(verb.__name__):
            return verb(*args, **kwargs)

    return named
