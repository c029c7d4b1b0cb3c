"""What a rank waits for, in memory that it shares with its watcher: to write it takes about a microsecond."""

from __future__ import annotations

import mmap
import os
import struct
import time
from typing import NamedTuple

_SIZE = 512
# a counter that is odd while the page is written, the wait's number, when it began, and the length of its name
_HEAD = struct.Struct("<QQdH")
_COUNTER = struct.Struct("<Q")
_TRIES = 100


class Wait(NamedTuple):
    """A wait of a rank for others.

    Attributes:
        number: Counted from 1; ranks that have waited equally often must wait for the same.
        what: The collective.
        since: When it began, on this host's monotonic clock.
    """

    number: int
    what: str
    since: float


class Page:
    """The shared memory; one process writes, another reads.

    Args:
        descriptor: Of a file in memory.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._memory = mmap.mmap(descriptor, _SIZE)
        self._counter = 0

    @classmethod
    def create(cls) -> Page:
        """Return a new page, on which nothing is written."""
        descriptor = os.memfd_create("hvdkit-wait")
        os.ftruncate(descriptor, _SIZE)
        return cls(descriptor)

    def begin(self, number: int, what: str) -> None:
        """Write that a wait begins."""
        name = what.encode()[: _SIZE - _HEAD.size]
        self._open()
        self._memory[_HEAD.size : _HEAD.size + len(name)] = name
        _HEAD.pack_into(self._memory, 0, self._counter, number, time.monotonic(), len(name))
        self._close()

    def end(self) -> None:
        """Write that it is over."""
        self._open()
        _HEAD.pack_into(self._memory, 0, self._counter, 0, 0.0, 0)
        self._close()

    def _open(self) -> None:
        self._counter += 1
        _COUNTER.pack_into(self._memory, 0, self._counter)

    def _close(self) -> None:
        self._counter += 1
        _COUNTER.pack_into(self._memory, 0, self._counter)

    def read(self) -> Wait | None:
        """Return the wait that is under way, None if there is none or the page was being written all the time."""
        for _ in range(_TRIES):
            counter, number, since, length = _HEAD.unpack_from(self._memory, 0)
            name = self._memory[_HEAD.size : _HEAD.size + length]
            if counter % 2 == 0 and _COUNTER.unpack_from(self._memory, 0)[0] == counter:
                return Wait(number, name.decode(errors="replace"), since) if number else None
        return None
