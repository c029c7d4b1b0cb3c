"""Ports for engines and strategies that a benchmark starts beside the launcher's own."""

from __future__ import annotations

import socket


def free_port() -> int:
    """Return a port of this host that nobody uses at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
