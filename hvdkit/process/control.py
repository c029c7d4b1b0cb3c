"""This rank's end of the watch: tells its watcher what it waits for, that it leaves or fails, and ends when it must."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hvdkit.errors import HvdkitError, LaunchError
from hvdkit.process import failures
from hvdkit.process.watch.hub import CONNECT_SECONDS
from hvdkit.process.watch.judge import Limits
from hvdkit.process.watch.links import Link, Message
from hvdkit.process.watch.page import Page
from hvdkit.process.watch.places import stack_file

BLAME_SECONDS = 2.0
FAREWELL_SECONDS = 1.0
# its watcher kills a rank that is there still after two
WORK_SECONDS = 1.5
_BEGIN = (
    "import sys; sys.path.insert(0, sys.argv[1]); from hvdkit.process.watch import watcher; watcher.main(sys.argv[2:])"
)


class ControlChannel:
    """The watcher of this rank, joined to those of all others.

    A rank that is gone, whose host cannot be reached, or that left while this one waits for it, ends this process. So
    does a proven mismatch: ranks have waited equally often, but wait in different collectives. A rank that is merely
    late is reported, and ends the job if it stays in the same place for long.

    Args:
        rank: Of this process.
        size: Ranks.
        broadcast_object: Returns rank 0's object on every rank.
        one_host: Whether all ranks run on one host.
        limits: How long ranks may wait for another.

    Raises:
        LaunchError: Not all ranks could be connected within a minute.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        broadcast_object: Callable[[Any], Any],
        one_host: bool = False,
        limits: Limits | None = None,
    ) -> None:
        self.rank, self.size = rank, size
        self._process = os.getpid()
        self._leaving = False
        self._ending = threading.Lock()
        self._sending = threading.Lock()
        self._marking = threading.Lock()
        self._told = threading.Event()
        self._page = Page.create()
        self._number = 0
        self._waits, self._what = False, ""
        self._link = self._start_watcher()
        limits = limits or Limits()
        if rank == 0:
            self._tell(size=size, one_host=one_host, report=limits.report, stuck=limits.stuck)
            address = self._answer("address")["address"]
        else:
            address = None
        address = broadcast_object(address)
        if rank:
            self._tell(join=address)
        self._answer("joined")
        self._thread = threading.Thread(target=self._listen, name="hvdkit-control", daemon=True)
        self._thread.start()

    def leave(self) -> None:
        """Tell the others that this rank has finished its part."""
        # a child that the script has forked is not the rank
        if os.getpid() == self._process:
            self._leaving = True
            self._tell(leave=True)

    def give_way(self) -> None:
        """Wait a moment if this rank fails in a collective: another one that is gone is named then, and ends it."""
        # a graph has begun to wait, and its error has left no chance to end that
        if os.getpid() == self._process and self._waits:
            self._tell(broken=self._what)
            time.sleep(BLAME_SECONDS)

    def stand_down(self) -> bool:
        """Leave the end of this process to its own failure; False if another rank's is ending it already."""
        self._leaving = True
        return self._ending.acquire(blocking=False)

    def fail(self, message: str) -> None:
        """Tell the others that this rank has failed; they end, and get a moment to say so."""
        if os.getpid() != self._process:
            return
        self._leaving = True
        self._tell(fail=message)
        # once this rank is gone, its launcher kills the others
        self._told.wait(FAREWELL_SECONDS)

    @contextlib.contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """Mark that this rank waits for others, so that the guard can end a wait that cannot end."""
        if self._waits:
            yield
            return
        self.begin(what)
        try:
            yield
        except HvdkitError:
            raise
        except Exception:
            # the engine has noticed that another rank is gone; the watcher names it, and ends this one
            self._tell(broken=what)
            time.sleep(BLAME_SECONDS)
            raise
        finally:
            self.end()

    def begin(self, what: str) -> None:
        """Mark that this rank begins to wait."""
        with self._marking:
            self._number += 1
            self._waits, self._what = True, what
            self._page.begin(self._number, what)

    def end(self) -> None:
        """Mark that it does no longer."""
        with self._marking:
            self._page.end()
            self._waits = False

    @property
    def number(self) -> int:
        """How often this rank has waited."""
        return self._number

    def mark_behind(self, number: int, what: str) -> None:
        """Mark that a wait is not over that this rank's Python has left behind, as on a GPU."""
        with self._marking:
            if not self._waits and self._page.read() is None:
                self._page.begin(number, what)

    def clear_behind(self) -> None:
        """Mark that it is over."""
        with self._marking:
            if not self._waits:
                self._page.end()

    def _tell(self, **message: Any) -> None:
        with self._sending:
            self._link.send(message)

    def _start_watcher(self) -> Link:
        ours, theirs = socket.socketpair()
        stack = stack_file()
        package = str(Path(__file__).parents[2])
        words = [str(number) for number in (self.rank, theirs.fileno(), self._page.descriptor, stack)]
        # -E and -S: it needs the standard library alone, and should be there at once
        subprocess.Popen(
            [sys.executable, "-E", "-S", "-c", _BEGIN, package, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(), self._page.descriptor, stack),
        )
        theirs.close()
        return Link(ours)

    def _answer(self, name: str) -> Message:
        """Wait for an answer of the watcher.

        Raises:
            LaunchError: It says why it has none.
        """
        deadline = time.monotonic() + CONNECT_SECONDS + 10.0
        while time.monotonic() < deadline:
            select.select([self._link.socket], [], [], 1.0)
            messages = self._link.receive()
            if messages is None:
                break
            for message in messages:
                if "error" in message:
                    raise LaunchError(message["error"])
                if "end" in message:
                    self._end_now(message["end"])
                if name in message:
                    return message
        raise LaunchError(f"rank {self.rank}: the process that watches over it does not answer")

    def _listen(self) -> None:
        while True:
            select.select([self._link.socket], [], [])
            messages = self._link.receive()
            if messages is None:
                # without its watcher a rank goes on
                return
            for message in messages:
                if "end" in message:
                    self._end_now(message["end"])
                elif "told" in message:
                    self._told.set()

    def _end_now(self, text: str) -> None:
        """End this process because of another rank."""
        if self._leaving or not self._ending.acquire(blocking=False):
            return
        self._leaving = True
        sys.stderr.write(failures.last_words(text, self.rank))
        failures.record(text, 1, secondary=True)
        self._tell(said=True)
        failures.finish_work(WORK_SECONDS)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


def waiting(control: ControlChannel | None, what: str) -> contextlib.AbstractContextManager[None]:
    """Mark a wait on a channel, if there is one."""
    return control.waiting(what) if control is not None else contextlib.nullcontext()
