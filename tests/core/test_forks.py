"""Children that a rank forks never find a lock of the interpreter taken for ever."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from limits import HANG_SECONDS

from hvdkit.process import forks

THREADS = Path("/proc/self/task")


@pytest.fixture
def busy_library():
    """The number of a thread that runs in C for a while and that Python does not know."""
    libc = ctypes.CDLL(None)
    blanks = ctypes.create_string_buffer(b" " * 200_000_000)
    before, handle = {thread.name for thread in THREADS.iterdir()}, ctypes.c_ulong()
    assert libc.pthread_create(ctypes.byref(handle), None, libc.atol, blanks) == 0
    (number,) = {thread.name for thread in THREADS.iterdir()} - before
    yield number
    libc.pthread_join(handle, None)


def test_s18_a_fork_waits_until_no_thread_of_a_library_runs(busy_library, monkeypatch):
    monkeypatch.setattr(forks, "_LIMIT_SECONDS", 60)
    assert (THREADS / busy_library).exists()
    forks.wait_for_threads()
    assert not (THREADS / busy_library).exists()


def test_a_thread_that_never_rests_holds_up_no_fork_for_long(busy_library, monkeypatch):
    monkeypatch.setattr(forks, "_LIMIT_SECONDS", 0.001)
    forks.wait_for_threads()
    assert (THREADS / busy_library).exists()


def test_threads_of_python_need_not_rest(monkeypatch):
    monkeypatch.setattr(forks, "_LIMIT_SECONDS", 60)
    ended = threading.Event()
    thread = threading.Thread(target=lambda: [sum(range(1000)) for _ in iter(ended.is_set, True)])
    thread.start()
    began = time.monotonic()
    forks.wait_for_threads()
    took = time.monotonic() - began
    ended.set()
    thread.join()
    assert took < 30


@pytest.mark.parametrize(("version", "asks"), [((3, 10, 14), 1), ((3, 10, 15), 0), ((3, 11, 9), 1), ((3, 12, 0), 0)])
def test_only_a_python_that_needs_it_is_asked_to_wait(version, asks, monkeypatch):
    asked = []
    monkeypatch.setattr(forks, "_is_prepared", False)
    monkeypatch.setattr(forks, "sys", SimpleNamespace(version_info=version))
    monkeypatch.setattr(os, "register_at_fork", lambda **when: asked.append(when["before"]))
    for _ in range(2):
        forks.prepare_forks()
    assert asked == [forks.wait_for_threads] * asks


@pytest.mark.processes
def test_init_prepares_the_forks_of_a_rank():
    script = """
import os
from hvdkit.job import world
from hvdkit.process import forks
forks.wait_for_threads = lambda: print("waited", flush=True)
world.init("serial")
child = os.fork()
if child == 0:
    os._exit(0)
os.waitpid(child, 0)
"""
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=HANG_SECONDS)
    assert finished.returncode == 0, finished.stderr
    needed = sys.version_info[:3] < (3, 10, 15) or (3, 11) <= sys.version_info[:3] < (3, 11, 10)
    assert finished.stdout == "waited\n" * needed
