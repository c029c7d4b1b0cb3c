"""The page on which a rank notes what it waits for, the places of ranks, and who may join."""

from __future__ import annotations

import json
import os
import selectors
import socket
import subprocess
import sys
import threading
import time

import pytest
from limits import HANG_SECONDS

from hvdkit.process.watch import places
from hvdkit.process.watch.hub import Hub
from hvdkit.process.watch.judge import Limits
from hvdkit.process.watch.links import Link
from hvdkit.process.watch.page import Page

STACK = """Thread 0x00007f (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 320 in wait
  File "/usr/lib/python3.11/threading.py", line 622 in run

Current thread 0x00007e (most recent call first):
  File "{package}/engines/base.py", line 12 in barrier
  File "/home/me/train.py", line 42 in step
  File "/home/me/train.py", line 99 in <module>
"""


def test_a_wait_is_read_as_it_was_written():
    page = Page.create()
    reader = Page(os.dup(page.descriptor))
    assert reader.read() is None
    before = time.monotonic()
    page.begin(3, "allreduce(mean) of float64 (4,)")
    wait = reader.read()
    assert (wait.number, wait.what) == (3, "allreduce(mean) of float64 (4,)")
    assert before <= wait.since <= time.monotonic()
    page.begin(4, "x" * 10_000)
    assert set(reader.read().what) == {"x"}
    page.end()
    assert reader.read() is None


def test_a_page_is_never_read_half_written():
    page = Page.create()
    done = threading.Event()

    def write():
        for number in range(1, 20_000):
            page.begin(number, f"{number} " * (number % 40 + 1))
        done.set()

    thread = threading.Thread(target=write)
    thread.start()
    reader = Page(os.dup(page.descriptor))
    while not done.is_set():
        wait = reader.read()
        if wait is not None:
            assert set(wait.what.split()) == {str(wait.number)}
    thread.join()


def test_the_place_is_the_line_of_the_users_script():
    text = STACK.format(package=places._PACKAGE)
    assert places.place_in(text).words == "at train.py:42 (in step)"
    assert "threading" not in places.place_in(text).stack
    assert places.place_in("Current thread 0x00007e:\n  <no Python frame>\n").words == "in code that is not Python's"


def test_code_that_autograph_has_written_is_not_the_users():
    written = '  File "/tmp/__autograph_generated_file1u3agf0c.py", line 14 in tf___run\n'
    text = STACK.format(package=places._PACKAGE).replace('  File "/home', f'{written}  File "/home', 1)
    assert places.place_in(text).words == "at train.py:42 (in step)"


@pytest.mark.processes
def test_a_place_is_found_while_the_interpreter_is_held():
    script = (
        "import os, re, sys, time\n"
        "from hvdkit.process.watch.places import stack_file\n"
        "print(stack_file(), flush=True)\n"
        're.match(r"(a+)+$", "a" * 40 + "b")\n'
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        descriptor = int(process.stdout.readline())
        time.sleep(0.3)
        whereabouts = places.Whereabouts(process.pid, os.open(f"/proc/{process.pid}/fd/{descriptor}", os.O_RDONLY))
        assert whereabouts.ask() is None
        place = answer_of(whereabouts)
        process.kill()
    assert 'File "<string>", line 4 in <module>' in place.stack


def answer_of(whereabouts):
    until = time.monotonic() + HANG_SECONDS
    while time.monotonic() < until:
        time.sleep(0.1)
        if (place := whereabouts.answer()) is not None:
            return place
    raise AssertionError("no answer")


def test_a_stack_that_is_not_written_yet_or_still_being_written_is_no_answer():
    descriptor = os.memfd_create("stack")
    whereabouts = places.Whereabouts(os.getpid(), descriptor)
    assert whereabouts.answer() is None
    head, tail = STACK.format(package=places._PACKAGE).split("Current")
    assert tail.endswith(" in <module>\n")
    os.write(descriptor, head.encode())
    assert whereabouts.answer() is None
    os.write(descriptor, f"Current{tail}".encode())
    assert whereabouts.answer().words == "at train.py:42 (in step)"


def test_a_stack_that_does_not_end_in_a_module_is_an_answer_when_no_more_is_written():
    descriptor = os.memfd_create("stack")
    whereabouts = places.Whereabouts(os.getpid(), descriptor)
    os.write(
        descriptor, b'Current thread 0x00007e (most recent call first):\n  File "/home/me/train.py", line 7 in run\n'
    )
    assert whereabouts.answer() is None
    assert whereabouts.answer().words == "at train.py:7 (in run)"


@pytest.fixture
def hub():
    told = []
    selector = selectors.DefaultSelector()
    made = Hub(3, Limits(), True, selector, told.append)

    def turn(seconds=0.1):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for key, _ in selector.select(timeout=0.02):
                key.data()
            made.look(time.monotonic())

    made.turn, made.told = turn, told
    yield made
    selector.close()


def knock(hub, *lines):
    _, port, _ = hub.address
    connection = socket.create_connection(("127.0.0.1", port))
    for line in lines:
        connection.sendall(line)
    return connection


def hello(hub, rank, token=None):
    return json.dumps({"hello": rank, "token": token or hub.address[2]}).encode() + b"\n"


STRANGERS = {
    "a list": b"[]\n",
    "a number": b"7\n",
    "no JSON": b"GET / HTTP/1.1\r\n\r\n",
    "another token": b'{"hello": 1, "token": "x"}\n',
    "a token that is not ASCII": '{"hello": 1, "token": "é"}\n'.encode(),
    "bytes": bytes(range(256)) + b"\n",
    "nothing": b"",
    "a line without an end": b"x" * 300_000,
}


@pytest.mark.parametrize("words", STRANGERS.values(), ids=STRANGERS)
def test_s09_strangers_neither_join_nor_hold_up_the_ranks(hub, words):
    with knock(hub, words), knock(hub, hello(hub, 1)) as first:
        hub.turn()
        with knock(hub, hello(hub, 2)) as second:
            hub.turn()
            assert hub.told == [{"joined": True}]
            assert first.recv(100) == b'{"welcome": 1}\n'
            assert second.recv(100) == b'{"welcome": 2}\n'


@pytest.mark.parametrize("rank", [0, 3, -1, "1", None, 1.5, True])
def test_only_ranks_of_the_job_are_let_in(hub, rank):
    with knock(hub, hello(hub, rank)) as connection:
        hub.turn()
        connection.settimeout(1.0)
        assert connection.recv(100) == b""


def test_no_rank_is_let_in_twice(hub):
    with knock(hub, hello(hub, 1)) as first, knock(hub, hello(hub, 1)) as again:
        hub.turn()
        assert first.recv(100) + again.recv(100) == b'{"welcome": 1}\n'


def test_one_host_listens_on_loopback_alone(hub):
    assert hub.address[0] == ["127.0.0.1"]
    with socket.socket() as other, pytest.raises(OSError, match="refused"):
        other.connect(("127.0.0.2", hub.address[1]))


def test_a_link_keeps_what_the_other_end_does_not_take_yet():
    ours, theirs = socket.socketpair()
    link, other = Link(ours), Link(theirs)
    for number in range(2000):
        link.send({"number": number, "text": "x" * 500})
    assert link.pending
    received = []
    while len(received) < 2000:
        received += other.receive()
        link.flush()
    assert [message["number"] for message in received] == list(range(2000))
    link.close()
    assert other.receive() is None
