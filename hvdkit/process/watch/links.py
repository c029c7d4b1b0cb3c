"""Messages between processes: JSON, one a line, over sockets that never block."""

from __future__ import annotations

import json
import socket
from typing import Any

Message = dict[str, Any]
_LONGEST = 1 << 20

# seconds until a host that no longer answers counts as gone: 3 + 3 * 2
_IDLE, _INTERVAL, _TRIES = 3, 2, 3


class Link:
    """One end of a connection.

    Attributes:
        socket: Is waited on for reading, and for writing while ``pending``.
        problem: How the connection ended: empty while it lives and after a regular end.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.socket = connection
        self.problem = ""
        self._in, self._out = b"", bytearray()

    @property
    def pending(self) -> bool:
        """Whether there is something left to send."""
        return bool(self._out)

    def send(self, message: Message) -> None:
        """Send a message, now or as soon as the other end takes it."""
        self._out += json.dumps(message).encode() + b"\n"
        self.flush()

    def flush(self) -> None:
        """Send what the other end takes."""
        try:
            while self._out:
                del self._out[: self.socket.send(self._out)]
        except BlockingIOError:
            return
        except OSError as error:
            self._out.clear()
            self.problem = str(error)

    def receive(self) -> list[Message] | None:
        """Return the messages that have arrived; None if the connection has ended.

        Raises:
            ValueError: The other end sends something else.
        """
        try:
            data = self.socket.recv(65536)
        except BlockingIOError:
            return []
        except OSError as error:
            self.problem = str(error)
            return None
        if not data:
            return None
        *lines, self._in = (self._in + data).split(b"\n")
        if len(self._in) > _LONGEST:
            raise ValueError("a line without an end")
        messages = [json.loads(line) for line in lines]
        if not all(isinstance(message, dict) for message in messages):
            raise ValueError("no message")
        return messages

    def close(self) -> None:
        """End the connection."""
        self.socket.close()


def notice_silence(connection: socket.socket) -> None:
    """Let the kernel end a connection to a host that no longer answers, within 10 s."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for name, value in (
        ("TCP_KEEPIDLE", _IDLE),
        ("TCP_KEEPINTVL", _INTERVAL),
        ("TCP_KEEPCNT", _TRIES),
        ("TCP_USER_TIMEOUT", 1000 * (_IDLE + _INTERVAL * _TRIES)),
    ):
        connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
