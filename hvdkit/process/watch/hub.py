"""The watcher of rank 0: connects all others, and judges."""

from __future__ import annotations

import contextlib
import resource
import secrets
import selectors
import socket
import sys
import time
from collections.abc import Callable

from hvdkit.process.watch.judge import Ask, End, Judge, Limits, Report
from hvdkit.process.watch.links import Link, Message, notice_silence

CONNECT_SECONDS = 60.0
_GREETING_SECONDS = 5.0
_OTHER_FILES = 100
_LOOK_SECONDS = 0.5

GONE = "its process is gone (killed or crashed)"
UNREACHABLE = "its host cannot be reached"


class Hub:
    """All ranks, as rank 0's watcher sees them.

    Args:
        size: Ranks.
        limits: How long they may wait.
        one_host: Whether all run here, so that nobody else need reach the port.
        selector: Is told of the sockets; their data is called when they are ready.
        own: Tells rank 0 itself.
    """

    def __init__(
        self,
        size: int,
        limits: Limits,
        one_host: bool,
        selector: selectors.BaseSelector,
        own: Callable[[Message], None],
    ) -> None:
        self.size = size
        self._judge = Judge(size, limits)
        self._selector, self._own = selector, own
        self._token = secrets.token_hex(16)
        self._members: dict[int, Link] = {}
        self._strangers: dict[Link, float] = {}
        self._until = time.monotonic() + CONNECT_SECONDS
        self._looked = 0.0
        self._ended = False
        self._answered = False
        _allow_files(size)
        self._listener = socket.create_server(("127.0.0.1" if one_host else "", 0), backlog=min(size, 4096))
        self._listener.setblocking(False)
        selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._one_host = one_host

    @property
    def address(self) -> tuple[list[str], int, str]:
        """Where the others find it, and what they must know."""
        addresses = ["127.0.0.1"] if self._one_host else own_addresses()
        return addresses, self._listener.getsockname()[1], self._token

    def take(self, rank: int, message: Message) -> None:
        """Take what a rank's watcher tells."""
        now = time.monotonic()
        if "wait" in message:
            number, what, seconds = message["wait"]
            self._judge.waits(rank, int(number), str(what), now - float(seconds))
        elif "goes_on" in message:
            self._judge.goes_on(rank, now)
        elif "left" in message:
            self._judge.leaves(rank, now)
            if rank == 0:
                self.tell_all({"left": 0}, but=0)
        elif "place" in message:
            self._judge.is_at(rank, str(message["place"]), str(message["stack"]), now)
        elif "fail" in message:
            self._end_all(End(rank, str(message["fail"])), but=rank)
        elif "broken" in message:
            gone = self._judge.broken_by(rank, str(message["broken"]))
            if gone is not None:
                self._end_all(gone)
        elif "gone" in message and not self._judge.has_left(rank):
            self._end_all(End(rank, GONE), but=rank)

    @property
    def has_members(self) -> bool:
        """Whether any other rank is there still."""
        return bool(self._members)

    def tell_all(self, message: Message, but: int | None = None) -> None:
        """Tell every rank."""
        for rank in range(self.size):
            if rank != but:
                self._tell(rank, message)

    def look(self, now: float) -> None:
        """Do what time brings: judge, and give up those who have not come."""
        for link, since in list(self._strangers.items()):
            if now - since > _GREETING_SECONDS:
                self._drop(link)
        if not self._answered and now > self._until:
            self._answered = True
            self._own(
                {
                    "error": f"only {len(self._members) + 1} of {self.size} ranks reached rank 0's control channel; "
                    "check that TCP connections between the hosts are allowed"
                }
            )
        if now - self._looked < _LOOK_SECONDS or self._ended:
            return
        self._looked = now
        for verdict in self._judge.look(now):
            if isinstance(verdict, End):
                self._end_all(verdict)
                return
            if isinstance(verdict, Ask):
                self._tell(verdict.rank, {"where": True})
            elif isinstance(verdict, Report):
                sys.stderr.write(f"hvdkit: {verdict.text}\n")
                sys.stderr.flush()

    def was_away(self, now: float) -> None:
        """Begin to count anew after this process was stopped."""
        self._judge.was_away(now)
        self._strangers = dict.fromkeys(self._strangers, now)

    def finish(self, seconds: float) -> None:
        """Send what is still to be sent, for so long at most."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and any(link.pending for link in self._members.values()):
            for link in self._members.values():
                link.flush()
            time.sleep(0.01)

    def _end_all(self, verdict: End, but: int | None = None) -> None:
        if self._ended:
            return
        self._ended = True
        self.tell_all({"end": [verdict.rank, verdict.message]}, but)

    def _tell(self, rank: int, message: Message) -> None:
        if rank == 0:
            self._own(message)
        elif rank in self._members:
            self._members[rank].send(message)
            self._watch(self._members[rank], lambda: self._hear(rank))

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            connection, _ = self._listener.accept()
            notice_silence(connection)
            link = Link(connection)
            self._strangers[link] = time.monotonic()
            self._watch(link, lambda: self._greet(link))

    def _greet(self, link: Link) -> None:
        """Let a rank of this job in, and nobody else."""
        try:
            messages = link.receive()
            if messages == []:
                return
            hello = (messages or [{}])[0]
            token, rank = str(hello.get("token")), hello.get("hello")
            known = secrets.compare_digest(token.encode(), self._token.encode())
            if not known or type(rank) is not int or not 0 < rank < self.size or rank in self._members:
                self._drop(link)
                return
        except (ValueError, OSError):
            self._drop(link)
            return
        del self._strangers[link]
        self._members[rank] = link
        link.send({"welcome": rank})
        self._watch(link, lambda: self._hear(rank))
        if len(self._members) == self.size - 1:
            self._selector.unregister(self._listener)
            self._listener.close()
            if not self._answered:
                self._answered = True
                self._own({"joined": True})

    def _hear(self, rank: int) -> None:
        link = self._members[rank]
        link.flush()
        try:
            messages = link.receive()
        except ValueError as error:
            messages, link.problem = None, str(error)
        for message in messages or ():
            self.take(rank, message)
        if messages is None:
            self._selector.unregister(link.socket)
            link.close()
            del self._members[rank]
            if not self._judge.has_left(rank):
                self._end_all(End(rank, UNREACHABLE if link.problem else GONE))
            return
        self._watch(link, lambda: self._hear(rank))

    def _watch(self, link: Link, ready: Callable[[], None]) -> None:
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if link.pending else 0)
        try:
            self._selector.modify(link.socket, events, ready)
        except KeyError:
            self._selector.register(link.socket, events, ready)

    def _drop(self, link: Link) -> None:
        self._strangers.pop(link, None)
        with contextlib.suppress(KeyError):
            self._selector.unregister(link.socket)
        link.close()


def _allow_files(size: int) -> None:
    """Allow this process a connection for every rank."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = size + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def own_addresses() -> list[str]:
    """Return the addresses at which other ranks may reach this host, the local one first."""
    addresses = ["127.0.0.1"]
    with contextlib.suppress(OSError):
        for *_, address in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET, socket.SOCK_STREAM):
            addresses.append(str(address[0]))
    # the route to a public address names the interface that other hosts see; nothing is sent
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        addresses.append(probe.getsockname()[0])
    return list(dict.fromkeys(addresses))
