"""A TCP channel from rank 0 to every rank, under all engines: who left, who failed, who still lives.

It uses the standard library alone and moves no data of the training.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from hvdkit.errors import HvdkitError, LaunchError
from hvdkit.process import failures

BEAT_SECONDS = 1.0
LOST_SECONDS = 10.0
LEFT_SECONDS = 5.0
BLAME_SECONDS = 2.0
FAREWELL_SECONDS = 1.0
MISMATCH_SECONDS = 5.0
LATE_SECONDS = 60.0
GUARD_SECONDS = 600.0
CONNECT_SECONDS = 60.0


@dataclass
class _Peer:
    rank: int
    link: socket.socket
    heard: float
    pending: bytes = b""
    wait: list[Any] | None = None


class ControlChannel:
    """This rank's end of the channel; one daemon thread listens, shows that this rank lives, and watches the others.

    A rank that is gone, silent for 10 s, or that left while this one waits for it, ends this process. So does a proven
    mismatch: ranks have waited equally often, but wait in different collectives, for 5 s. A rank that is merely late is
    reported after 60 s and ends the job after 600 s.

    Raises:
        LaunchError: Not all ranks could be connected within a minute.
    """

    def __init__(self, rank: int, size: int, broadcast_object: Callable[[Any], Any]) -> None:
        self.rank, self.size = rank, size
        self._lock = threading.Lock()
        self._left: dict[int, float] = {}
        self._leaving = False
        self._ending = threading.Lock()
        self._wait: tuple[str, float, int] | None = None
        self._reported = False
        self._number = 0
        self._mismatch: tuple[Any, float] | None = None
        self._selector = selectors.DefaultSelector()
        self._peers = self._accept(broadcast_object) if rank == 0 else self._connect(broadcast_object)
        for peer in self._peers.values():
            self._selector.register(peer.link, selectors.EVENT_READ, peer)
        self._thread = threading.Thread(target=self._serve, name="hvdkit-control", daemon=True)
        self._thread.start()

    def leave(self) -> None:
        """Tell the others that this rank has finished its part."""
        self._leaving = True
        self._send({"leave": self.rank})

    def stand_down(self) -> bool:
        """Leave the end of this process to its own failure; False if another rank's is ending it already."""
        self._leaving = True
        return self._ending.acquire(blocking=False)

    def fail(self, message: str) -> None:
        """Tell the others that this rank has failed; they end, and get a second to say so."""
        self._leaving = True
        self._send({"fail": self.rank, "message": message})
        # once this rank is gone, its launcher kills the others
        deadline = time.monotonic() + FAREWELL_SECONDS
        while self._peers and time.monotonic() < deadline:
            time.sleep(0.01)

    @contextlib.contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """Mark that this rank waits for others, so that the guard can end a wait that cannot end."""
        if self._wait is not None:
            yield
            return
        self._number += 1
        self._wait, self._reported = (what, time.monotonic(), self._number), False
        try:
            yield
        except HvdkitError:
            raise
        except Exception:
            self._blame(what)
            raise
        finally:
            self._wait = None

    def _blame(self, what: str) -> None:
        """End with the name of the rank that left, if that is why the engine raised; news of it may still be coming."""
        deadline = time.monotonic() + BLAME_SECONDS
        while not self._left and time.monotonic() < deadline:
            time.sleep(0.05)
        for rank in list(self._left):
            self._end_all(rank, f"it has left the job while rank {self.rank} waits in {what}")

    def _accept(self, broadcast_object: Callable[[Any], Any]) -> dict[int, _Peer]:
        with socket.create_server(("", 0), backlog=self.size) as listener:
            token = secrets.token_hex(16)
            broadcast_object((_own_addresses(), listener.getsockname()[1], token))
            peers: dict[int, _Peer] = {}
            deadline = time.monotonic() + CONNECT_SECONDS
            while len(peers) < self.size - 1:
                listener.settimeout(max(0.1, deadline - time.monotonic()))
                try:
                    link, _ = listener.accept()
                    peer = _greet(link, token)
                except (OSError, ValueError) as error:
                    if time.monotonic() > deadline:
                        raise LaunchError(
                            f"only {len(peers) + 1} of {self.size} ranks reached rank 0's control channel; "
                            "check that TCP connections between the hosts are allowed"
                        ) from error
                    continue
                peers[peer.rank] = peer
        return peers

    def _connect(self, broadcast_object: Callable[[Any], Any]) -> dict[int, _Peer]:
        addresses, port, token = broadcast_object(None)
        for address in addresses:
            try:
                link = socket.create_connection((address, port), timeout=5)
                link.sendall(_encode({"hello": self.rank, "token": token}))
                if link.recv(3) == b"ok\n":
                    link.settimeout(None)
                    return {0: _Peer(0, link, time.monotonic())}
            except OSError:
                continue
        raise LaunchError(f"rank {self.rank} cannot reach rank 0 at {', '.join(addresses)}, port {port}")

    def _serve(self) -> None:
        beat = 0.0
        while True:
            for key, _ in self._selector.select(timeout=BEAT_SECONDS / 2):
                self._read(key.data)
            now = time.monotonic()
            if now - beat >= BEAT_SECONDS:
                beat = now
                self._send({"beat": self.rank, "wait": self._own_wait()})
            self._watch(now)

    def _read(self, peer: _Peer) -> None:
        try:
            data = peer.link.recv(65536)
        except OSError:
            data = b""
        if not data:
            self._selector.unregister(peer.link)
            del self._peers[peer.rank]
            if peer.rank not in self._left and not self._leaving:
                self._end_all(peer.rank, "its process is gone (killed or crashed)")
            return
        peer.heard = time.monotonic()
        *lines, peer.pending = (peer.pending + data).split(b"\n")
        for line in lines:
            self._handle(peer, json.loads(line))

    def _handle(self, peer: _Peer, message: dict[str, Any]) -> None:
        if "beat" in message:
            peer.wait = message["wait"]
        elif "fail" in message:
            self._end_all(message["fail"], message["message"])
        elif "leave" in message:
            self._left[message["leave"]] = time.monotonic()
            if self.rank == 0:
                self._send(message)

    def _watch(self, now: float) -> None:
        for peer in list(self._peers.values()):
            if now - peer.heard > LOST_SECONDS and peer.rank not in self._left and not self._leaving:
                self._end_all(peer.rank, f"no sign of life for {LOST_SECONDS:.0f} s")
        if self.rank == 0:
            self._find_mismatch(now)
        wait = self._wait
        if wait is None or self._leaving:
            return
        what, since, _ = wait
        for rank, left in self._left.items():
            if now - max(since, left) > LEFT_SECONDS:
                self._end_all(rank, f"it has left the job while rank {self.rank} waits in {what}")
        if now - since > GUARD_SECONDS:
            self._end_all(self.rank, f"it has waited {GUARD_SECONDS:.0f} s in {what}; not all ranks came there")
        if now - since > LATE_SECONDS and not self._reported:
            self._reported = True
            sys.stderr.write(f"hvdkit: rank {self.rank} has waited {now - since:.0f} s for other ranks in {what}\n")

    def _own_wait(self) -> list[Any] | None:
        """Return the number of the wait that this rank is in, counted from 1, and its collective."""
        wait = self._wait
        return None if wait is None else [wait[2], wait[0]]

    def _find_mismatch(self, now: float) -> None:
        """End the job when two ranks are in their wait of the same number, but in different collectives."""
        places: dict[int, tuple[int, str]] = {}
        for rank, wait in sorted({0: self._own_wait(), **{p.rank: p.wait for p in self._peers.values()}}.items()):
            if wait is None:
                continue
            number, what = wait
            first, expected = places.setdefault(number, (rank, what))
            if what != expected:
                self._judge_mismatch((number, first, expected, rank, what), now)
                return
        self._mismatch = None

    def _judge_mismatch(self, found: tuple[int, int, str, int, str], now: float) -> None:
        if self._mismatch is None or self._mismatch[0] != found:
            self._mismatch = found, now
        if now - self._mismatch[1] >= MISMATCH_SECONDS:
            _, first, expected, rank, what = found
            self._end_all(
                rank,
                f"it waits in {what} while rank {first} waits in {expected}; all ranks must ask for the same "
                "collectives in the same order",
            )

    def _end_all(self, rank: int, message: str) -> None:
        """Tell the others of the rank that failed, and end this process."""
        if self._leaving or not self._ending.acquire(blocking=False):
            return
        self._leaving = True
        self._send({"fail": rank, "message": message})
        text = f"rank {rank} failed: {message}"
        sys.stderr.write(f"hvdkit: error: {text}; rank {self.rank} ends too\n")
        failures.record(text, 1, secondary=True)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)

    def _send(self, message: dict[str, Any]) -> None:
        with self._lock:
            for peer in list(self._peers.values()):
                with contextlib.suppress(OSError):
                    peer.link.sendall(_encode(message))


def waiting(control: ControlChannel | None, what: str) -> contextlib.AbstractContextManager[None]:
    """Mark a wait on a channel, if there is one."""
    return control.waiting(what) if control is not None else contextlib.nullcontext()


def _greet(link: socket.socket, token: str) -> _Peer:
    """Check that a connection comes from a rank of this job.

    Raises:
        ValueError: It does not.
    """
    link.settimeout(5)
    hello = json.loads(link.makefile("rb").readline(200))
    if not secrets.compare_digest(str(hello.get("token")), token):
        link.close()
        raise ValueError("a stranger knocked at the control channel")
    link.sendall(b"ok\n")
    link.settimeout(None)
    return _Peer(int(hello["hello"]), link, time.monotonic())


def _encode(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


def _own_addresses() -> list[str]:
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
