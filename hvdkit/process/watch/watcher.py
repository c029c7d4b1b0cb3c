"""What runs in the small process beside a rank."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable

from hvdkit.process import failures
from hvdkit.process.watch.hub import CONNECT_SECONDS, GONE, UNREACHABLE, Hub
from hvdkit.process.watch.judge import LEFT_SECONDS, Limits
from hvdkit.process.watch.links import Link, Message, notice_silence
from hvdkit.process.watch.page import Page, Wait
from hvdkit.process.watch.places import Whereabouts

ROUND_SECONDS = 0.5
LASTING_SECONDS = 2.0
"""A wait of which the hub hears."""

AWAY_SECONDS = 5.0
"""A round that took so much longer says that this process was stopped."""

MERCY_SECONDS = 2.0
"""So long a rank that must end has to do it by itself."""

_STACK_SECONDS = 0.1
_FLUSH_SECONDS = 1.0


def main(arguments: list[str]) -> None:
    """Watch the parent process.

    Args:
        arguments: Its rank, and the descriptors of a socket to it, of its page and of its stack's file.
    """
    rank, link, page, stack = (int(word) for word in arguments)
    # whatever ends the job ends the rank, and this process with it
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(signum, signal.SIG_IGN)
    Watcher(rank, Link(socket.socket(fileno=link)), Page(page), stack).run()


class Watcher:
    """One rank's watcher.

    Args:
        rank: Of the process that it watches, which is its parent.
        link: To the rank.
        page: On which the rank notes what it waits for.
        stack: Where it writes its stack when it is asked.
    """

    def __init__(self, rank: int, link: Link, page: Page, stack: int) -> None:
        self._rank, self._link, self._page = rank, link, page
        self._process = os.getppid()
        self._whereabouts = Whereabouts(self._process, stack)
        self._selector = selectors.DefaultSelector()
        self._selector.register(link.socket, selectors.EVENT_READ, self._obey)
        # not every kernel has it; then the end is seen a moment later
        with contextlib.suppress(OSError):
            self._selector.register(os.pidfd_open(self._process), selectors.EVENT_READ, self._lose)
        self._hub: Hub | None = None
        self._upstream: Link | None = None
        self._told: int | None = None
        self._asked: float | None = None
        self._left = self._failed = self._said = self._heard = False
        self._root_left: float | None = None
        self._mercy: tuple[float, str] | None = None
        self._done = False

    def run(self) -> None:
        """Watch until the rank is gone."""
        before = time.monotonic()
        while not self._done:
            for key, _ in self._selector.select(ROUND_SECONDS if self._asked is None else _STACK_SECONDS):
                ready: Callable[[], None] = key.data
                ready()
                if self._done:
                    break
            now = time.monotonic()
            if now - before > ROUND_SECONDS + AWAY_SECONDS:
                self._was_away(now)
            before = now
            self._look(now)
        if self._hub is not None:
            self._hub.finish(_FLUSH_SECONDS)

    def _obey(self) -> None:
        """Take what the rank says; its end is seen elsewhere, since its children may hold the socket."""
        for message in self._link.receive() or ():
            if "size" in message:
                limits = Limits(message["report"], message["stuck"])
                self._hub = Hub(message["size"], limits, message["one_host"], self._selector, self._take)
                self._link.send({"address": self._hub.address})
            elif "join" in message:
                self._join(*message["join"])
            elif "leave" in message:
                self._left = True
                self._tell({"left": True})
            elif "said" in message:
                self._said = True
            elif "fail" in message:
                self._failed = True
                self._tell({"fail": message["fail"]})
            elif "broken" in message:
                self._tell({"broken": message["broken"]})

    def _join(self, addresses: list[str], port: int, token: str) -> None:
        problem = ""
        for address in addresses:
            try:
                connection = socket.create_connection((address, port), timeout=5)
                notice_silence(connection)
                connection.sendall(b'{"hello": %d, "token": "%s"}\n' % (self._rank, token.encode()))
                connection.settimeout(CONNECT_SECONDS)
                if connection.recv(64, socket.MSG_PEEK):
                    self._upstream = Link(connection)
                    self._selector.register(connection, selectors.EVENT_READ, self._hear)
                    self._link.send({"joined": True})
                    return
            except OSError as error:
                problem = f" ({error})"
        self._link.send(
            {"error": f"rank {self._rank} cannot reach rank 0 at {', '.join(addresses)}, port {port}{problem}"}
        )

    def _hear(self) -> None:
        assert self._upstream is not None
        try:
            messages = self._upstream.receive()
        except ValueError as error:
            messages, self._upstream.problem = None, str(error)
        for message in messages or ():
            self._take(message)
        if messages is None:
            self._selector.unregister(self._upstream.socket)
            if self._root_left is None:
                self._end(0, UNREACHABLE if self._upstream.problem else GONE)
            self._upstream = None

    def _take(self, message: Message) -> None:
        """Take what the hub says."""
        if "end" in message:
            self._end(*message["end"])
        elif "where" in message:
            place = self._whereabouts.ask()
            if place is None:
                self._asked = time.monotonic()
            else:
                self._tell({"place": place.words, "stack": place.stack})
        elif "left" in message:
            self._root_left = time.monotonic()
        elif "joined" in message or "error" in message:
            self._link.send(message)

    def _tell(self, message: Message) -> None:
        if self._hub is not None:
            self._hub.take(self._rank, message)
        elif self._upstream is not None:
            self._upstream.send(message)

    def _lose(self) -> None:
        """Say that the rank is gone, if it has not said so itself."""
        self._done = True
        self._obey()
        if self._left or self._failed or self._said:
            return
        if self._mercy is None:
            self._tell({"gone": True})
        else:
            # its launcher was faster than it
            self._say(self._mercy[1])

    def _was_away(self, now: float) -> None:
        if self._hub is not None:
            self._hub.was_away(now)
        if self._root_left is not None:
            self._root_left = now
        self._told = None

    def _look(self, now: float) -> None:
        if os.getppid() != self._process and not self._done:
            self._lose()
        if self._done:
            return
        if self._failed:
            self._answer_the_failing()
            return
        if self._mercy is not None:
            self._be_hard(now)
            return
        wait = self._page.read()
        self._tell_of(wait, now)
        if self._asked is not None and now - self._asked > _STACK_SECONDS:
            self._look_for_the_answer(now)
        if self._hub is not None:
            self._hub.look(now)
        if self._upstream is not None and self._upstream.pending:
            self._upstream.flush()
        self._miss_the_root(wait, now)

    def _look_for_the_answer(self, now: float) -> None:
        place = self._whereabouts.answer()
        # a machine that is short of cores may let the rank answer later
        self._asked = now if place is None else None
        if place is not None:
            self._tell({"place": place.words, "stack": place.stack})

    def _miss_the_root(self, wait: Wait | None, now: float) -> None:
        """Judge without the hub, which has left with rank 0."""
        if self._root_left is None or wait is None or self._left:
            return
        if now - max(wait.since, self._root_left) > LEFT_SECONDS:
            self._end(0, f"it has left the job while rank {self._rank} waits in {wait.what}")

    def _answer_the_failing(self) -> None:
        """Tell a rank that fails when the others have ended."""
        others = self._upstream is not None if self._hub is None else self._hub.has_members
        if not others and not self._heard:
            self._heard = True
            self._link.send({"told": True})

    def _tell_of(self, wait: Wait | None, now: float) -> None:
        if wait is not None and now - wait.since > LASTING_SECONDS:
            if self._told != wait.number:
                self._told = wait.number
                self._tell({"wait": [wait.number, wait.what, now - wait.since]})
        elif self._told is not None:
            self._told = None
            self._tell({"goes_on": True})

    def _end(self, rank: int, message: str) -> None:
        """Let the rank end because of another, or of itself."""
        if self._left or self._failed or self._mercy is not None:
            return
        text = f"rank {rank} failed: {message}"
        self._mercy = time.monotonic() + MERCY_SECONDS, text
        self._link.send({"end": text})

    def _be_hard(self, now: float) -> None:
        """End a rank that cannot do it itself: its interpreter is held, or it is stopped."""
        assert self._mercy is not None
        until, text = self._mercy
        if now < until:
            return
        if not self._said:
            self._said = True
            self._say(text)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process, signal.SIGKILL)

    def _say(self, text: str) -> None:
        """Say and record the rank's last words in its place."""
        with contextlib.suppress(OSError):
            sys.stderr.write(failures.last_words(text, self._rank))
            sys.stderr.flush()
        failures.record(text, 1, secondary=True, rank=self._rank)


if __name__ == "__main__":
    main(sys.argv[1:])
