"""`hvdkit.run`: a function on N processes."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from limits import HANG_SECONDS

import hvdkit
from hvdkit.errors import EngineError, LaunchError
from hvdkit.process.environment import launched_as

OFFSET = 10


def my_rank():
    return launched_as().rank


@pytest.fixture(autouse=True)
def _importable(launch, monkeypatch):
    environment = launch.environment()
    for name in set(os.environ) - set(environment):
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


def test_f08_one_result_for_each_rank(engine):
    def function(base, factor=1):
        return {"rank": my_rank(), "value": base * factor + OFFSET}

    results = hvdkit.run(function, args=(2,), kwargs={"factor": 3}, np=2, engine=engine)
    assert results == [{"rank": 0, "value": 16}, {"rank": 1, "value": 16}]


@pytest.mark.mpi
def test_f08_ranks_work_together():
    pytest.importorskip("mpi4py")

    def function():
        from mpi4py import MPI

        return MPI.COMM_WORLD.allreduce(MPI.COMM_WORLD.rank + 1)

    assert hvdkit.run(function, np=3, engine="mpi", hosts="localhost:3") == [6, 6, 6]


def test_f08_an_open_file_is_named_before_launch(tmp_path, promised):
    began = time.time()
    with (tmp_path / "events").open("w") as writer:

        def log(text):
            writer.write(text)

        def function():
            log("started")

        with pytest.raises(LaunchError, match=r"variable 'writer' \(used in 'log'\), a TextIOWrapper,.*inside the"):
            hvdkit.run(function, np=2, engine="mpi")
        with pytest.raises(LaunchError, match="argument 'sink', a TextIOWrapper, cannot be sent"):
            hvdkit.run(my_rank, kwargs={"sink": writer}, np=2, engine="mpi")
        with pytest.raises(LaunchError, match="argument 1, a list, cannot be sent"):
            hvdkit.run(my_rank, args=(1, [writer]), np=2, engine="mpi")
    assert time.time() - began < promised(2.0, since=began)


def test_f08_the_error_of_a_rank_comes_to_the_caller(engine, capfd):
    def function():
        if my_rank() == 1:
            raise ValueError("no such class")
        time.sleep(60)

    with pytest.raises(LaunchError, match=r"^rank 1: ValueError: no such class$"):
        hvdkit.run(function, np=2, engine=engine, verbose=False)
    assert capfd.readouterr().out == ""


def test_f08_a_result_that_cannot_be_sent_is_named():
    with pytest.raises(LaunchError, match=r"^rank 0: the result, a lock, cannot be sent back"):
        hvdkit.run(threading.Lock, np=1)


def test_a_rank_that_leaves_without_a_result_is_named():
    with pytest.raises(LaunchError, match="rank 0 ended without a result"):
        hvdkit.run(lambda: os._exit(0), np=1)


def test_bad_arguments_are_refused():
    with pytest.raises((EngineError, LaunchError), match="engine 'warp' is unknown"):
        hvdkit.run(my_rank, np=2, engine="warp")
    with pytest.raises(LaunchError, match="runs on this host only"):
        hvdkit.run(my_rank, np=2, hosts="192.0.2.1:2")
    with pytest.raises(LaunchError, match="give it localhost:2"):
        hvdkit.run(my_rank, np=2, hosts="localhost:1")


def test_lines_of_ranks_are_shown(capsys):
    hvdkit.run(lambda: print("here"), np=1)
    assert "[0] here\n" in capsys.readouterr().out


CALLER = """
import helper_beside, hvdkit

GREETING = "hello"

class Box:
    def __init__(self, value): self.value = value

def inner():
    return helper_beside.NAME

def function():
    time.sleep({seconds})
    return Box(f"{{GREETING}} {{inner()}}")

open("called", "w").close()
print([box.value for box in hvdkit.run(function, np=2, engine="{engine}")])
"""


def call(launch, seconds, engine="mpi"):
    launch.script("NAME = 'helper'\n", "sub/helper_beside.py")
    script = launch.script(CALLER.format(seconds=seconds, engine=engine), "sub/caller.py")
    return subprocess.Popen(
        [sys.executable, script],
        cwd=launch.folder,
        env=launch.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_functions_and_classes_of_main_and_modules_beside_it_travel(launch):
    out, err = call(launch, 0).communicate(timeout=HANG_SECONDS)
    assert out.splitlines()[-1] == "['hello helper', 'hello helper']", err


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL], ids=["SIGINT", "SIGKILL"])
def test_f10_the_end_of_the_caller_ends_the_job(launch, promised, engine, signum):
    process = call(launch, 300, engine)
    launch.wait_until(lambda: sum("hvdkit.tools.launch.call" in line for line in launch.processes().values()) > 4)
    time.sleep(1)
    process.send_signal(signum)
    launch.end_within(promised)
    _, err = process.communicate(timeout=HANG_SECONDS)
    assert signum == signal.SIGKILL or "KeyboardInterrupt" in err
