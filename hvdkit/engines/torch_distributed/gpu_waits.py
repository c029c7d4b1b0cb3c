"""Reductions that a GPU has not finished: NCCL holds up the GPU and not Python, which goes on to its next sync."""

from __future__ import annotations

import threading
import time
from collections import deque

import torch

from hvdkit.process.control import ControlChannel

_ROUND_SECONDS = 0.5
_LASTING_SECONDS = 2.0


class GpuWaits:
    """Marks reductions that last as waits of this rank; one thread looks at their events.

    Args:
        control: Is told.
    """

    def __init__(self, control: ControlChannel) -> None:
        self._control = control
        self._pending: deque[tuple[torch.cuda.Event, int, str]] = deque()
        self._idle: deque[torch.cuda.Event] = deque()
        threading.Thread(target=self._look, name="hvdkit-gpu-waits", daemon=True).start()

    def add(self, what: str) -> None:
        """Note that what the current stream has been given waits for others."""
        if torch.cuda.is_current_stream_capturing():
            return
        event = self._idle.popleft() if self._idle else torch.cuda.Event()
        event.record()
        self._pending.append((event, self._control.number, what))

    def _look(self) -> None:
        first: torch.cuda.Event | None = None
        since, marked = 0.0, False
        while True:
            time.sleep(_ROUND_SECONDS)
            while self._pending and self._pending[0][0].query():
                self._idle.append(self._pending.popleft()[0])
                first = None
            now = time.monotonic()
            if not self._pending:
                first = None
            elif first is not self._pending[0][0]:
                first, since = self._pending[0][0], now
            if first is not None and now - since > _LASTING_SECONDS:
                self._control.mark_behind(*self._pending[0][1:])
                marked = True
            elif marked:
                self._control.clear_behind()
                marked = False
