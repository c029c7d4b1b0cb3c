"""The hub of the watch with many simulated ranks: time until all are connected, and its share of a core.

python -m benchmarks.watch_scale [--ranks 2000] [--seconds 20]

Each simulated rank is a connection that says what a watcher says: nothing while training goes on, a message when a wait
lasts and when it is over. One in ``--waiting`` does that every other second.
"""

from __future__ import annotations

import json
import multiprocessing
import resource
import selectors
import socket
import time
from multiprocessing.connection import Connection

import click

from hvdkit.process.watch.hub import Hub
from hvdkit.process.watch.judge import Limits


def _serve(ranks: int, seconds: float, parent: Connection) -> None:
    selector = selectors.DefaultSelector()
    told: list[dict[str, object]] = []
    began = time.monotonic()
    hub = Hub(ranks, Limits(), True, selector, told.append)
    parent.send(hub.address)

    def turn() -> None:
        for key, _ in selector.select(timeout=0.5):
            key.data()
        hub.look(time.monotonic())

    while not told:
        turn()
    connected = time.monotonic() - began
    before = resource.getrusage(resource.RUSAGE_SELF)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        turn()
    after = resource.getrusage(resource.RUSAGE_SELF)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    parent.send((connected, used / seconds, told))


@click.command()
@click.option("--ranks", default=2000, show_default=True)
@click.option("--seconds", default=20.0, show_default=True)
@click.option("--waiting", default=10, show_default=True, help="One rank in so many waits every other second.")
def main(ranks: int, seconds: float, waiting: int) -> None:
    """Measure the hub."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (ranks + 100, max(ranks + 100, _most_files())))
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=_serve, args=(ranks, seconds, theirs))
    server.start()
    _, port, token = ours.recv()
    links = []
    for rank in range(1, ranks):
        link = socket.create_connection(("127.0.0.1", port))
        link.sendall(json.dumps({"hello": rank, "token": token}).encode() + b"\n")
        links.append(link)
    number = 0
    while not ours.poll(1.0):
        number += 1
        for link in links[::waiting]:
            words = {"wait": [number, "the reduction of gradients", 2.0]} if number % 2 else {"goes_on": True}
            link.sendall(json.dumps(words).encode() + b"\n")
    connected, share, told = ours.recv()
    server.join()
    print(f"{ranks} ranks: all connected after {connected:.2f} s, {100 * share:.1f} % of a core, {told}")


def _most_files() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[1]


if __name__ == "__main__":
    main()
