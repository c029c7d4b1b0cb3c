"""Where one backward pass begins and ends, also where it runs others inside or breaks off."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch


class Pass:
    """One backward pass, from its first gradient on.

    Reentrant checkpointing runs backward inside a function of the outer backward: that is one pass, which ends with
    the outer one.

    Attributes:
        nested: Whether its first gradient came from a backward inside another.
        broken: Whether it ended by an error, so that some gradients never came.
        ended: Called at its end, if no error ends it.
    """

    def __init__(self, ended: Callable[[], None]) -> None:
        self.broken = self._followed = False
        self.ended = ended
        outer = _outer_function()
        self.nested = outer is not None
        if outer is None:
            self._follow()
            return
        # the function's own end cannot be hooked while it runs, but what comes after it can
        for node in {node for node, _ in outer.next_functions if node is not None}:
            node.register_prehook(self._follow)

    def _follow(self, *_: Any) -> None:
        if not self._followed:
            self._followed = True
            torch.autograd.Variable._execution_engine.queue_callback(_Ending(self))


class _Ending:
    """What autograd calls at the end of a pass, and lets go without a call where an error ends it."""

    def __init__(self, current: Pass) -> None:
        self._pass: Pass | None = current

    def __call__(self) -> None:
        current, self._pass = self._pass, None
        if current is not None:
            current.ended()

    def __del__(self) -> None:
        if self._pass is not None:
            self._pass.broken = True


def _outer_function() -> Any:
    """Return the node of the outermost ``torch.autograd.Function`` whose backward is running here, or None."""
    outer, frame = None, inspect.currentframe()
    while frame is not None:
        if frame.f_code is _APPLY:
            outer = frame.f_locals["self"]
        frame = frame.f_back
    return outer


_APPLY = torch.autograd.function.BackwardCFunction.apply.__code__
