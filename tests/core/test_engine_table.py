"""Which launcher runs which engine for which tensor library; the rest is refused by name."""

from __future__ import annotations

import itertools

import pytest
from ranks import launch_fresh, on

from hvdkit.engines.choice import choose
from hvdkit.engines.table import SPECS, libraries, names
from hvdkit.errors import EngineError, LaunchError
from hvdkit.process.environment import LaunchedAs, launched_as

# written out once more, so that a change of the table has to be meant
ALLOWED = {
    ("plain", "serial"): "torch tf jax",
    ("plain", "horovod"): "torch tf",
    ("plain", "torch"): "torch",
    ("plain", "mpi"): "torch tf jax",
    ("horovodrun", "horovod"): "torch tf",
    ("torchrun", "torch"): "torch",
    ("mpirun", "horovod"): "torch tf",
    ("mpirun", "mpi"): "torch tf jax",
}
LAUNCHERS = sorted({launcher for spec in SPECS for launcher in spec.launchers})
EVERY = list(itertools.product(LAUNCHERS, names(), libraries()))
HERE = on("core", engines=("mpi",), sizes=(1,))[0]


@pytest.mark.parametrize(("launcher", "engine", "library"), EVERY)
def test_the_table_of_launcher_engine_and_library(launcher, engine, library):
    launched = LaunchedAs(launcher, 0, 1 if launcher == "plain" else 2)
    if library in ALLOWED.get((launcher, engine), "").split():
        assert choose(engine, library, launched).engine == engine
        return
    with pytest.raises((EngineError, LaunchError)) as caught:
        choose(engine, library, launched)
    assert repr(engine) in str(caught.value)
    assert repr(library) in str(caught.value) or launcher in str(caught.value)
    assert "use one of" in str(caught.value) or "start it with" in str(caught.value)


def test_an_unknown_engine_is_refused_with_those_that_exist():
    with pytest.raises(EngineError, match="'nccl' is unknown; use auto, serial, horovod, torch, mpi"):
        choose("nccl", "torch", LaunchedAs("plain"))


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, ("plain", 0, 1)),
        ({"RANK": "1", "WORLD_SIZE": "4"}, ("torchrun", 1, 4)),
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "3"}, ("mpirun", 2, 3)),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, ("mpirun", 0, 2)),
        ({"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"},
         ("horovodrun", 1, 2)),
        ({"RANK": "1"}, ("plain", 0, 1)),
    ],
)  # fmt: skip
def test_who_started_this_process(environ, expected):
    assert launched_as(environ) == LaunchedAs(*expected)


def test_a_launcher_variable_that_is_no_number_is_named():
    with pytest.raises(LaunchError, match="WORLD_SIZE is 'two', not a number"):
        launched_as({"RANK": "0", "WORLD_SIZE": "two"})


def test_auto_without_a_launcher_is_one_process_and_says_why():
    choice = choose("auto", "torch", LaunchedAs("plain"))
    assert (choice.engine, choice.reason) == ("serial", "started without a launcher: one process")


@pytest.mark.processes
@pytest.mark.mpi
@pytest.mark.skipif(bool(HERE.marks and any(mark.name == "skip" for mark in HERE.marks)), reason="no MPI here")
def test_a_launcher_of_two_around_an_engine_that_finds_one_ends_in_one_line():
    # what a foreign MPI does: every process finds itself alone
    env = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}
    done = launch_fresh("import hvdkit\nhvdkit.init('mpi')\nprint('trained alone')\n", env=env)
    assert done.code == 1
    assert "mpirun started 2 processes but engine 'mpi' finds 1" in done.stderr
    assert "hvdkit run -np 2 --engine mpi" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.processes
def test_an_engine_under_the_wrong_launcher_ends_in_one_line():
    env = {"RANK": "0", "WORLD_SIZE": "2"}
    done = launch_fresh("import hvdkit\nhvdkit.init('mpi')\n", env=env)
    assert done.code == 1
    assert done.stderr.strip().splitlines() == [
        "hvdkit: error: engine 'mpi' does not run under torchrun; start it with mpirun, "
        "or with: hvdkit run --engine mpi"
    ]


@pytest.mark.processes
def test_f07_plain_python_is_one_process_and_init_is_idempotent():
    script = """
import hvdkit
world = hvdkit.init()
print(world is hvdkit.init("serial"), world.rank, world.size, world.local_rank, world.nodes, world.is_root)
hvdkit.init("mpi")
"""
    done = launch_fresh(script)
    assert done.stdout.split() == ["True", "0", "1", "0", "1", "True"]
    assert "already uses engine 'serial'; it cannot change to 'mpi'" in done.stderr


@pytest.mark.processes
def test_a_wrong_framework_name_and_a_wrong_engine_are_one_line_and_no_success():
    recipe = "hvdkit.Recipe(model='mnist_cnn', data=lambda: None, optimizer=hvdkit.SGD())"
    for call, message in (
        (f"hvdkit.apply({recipe}, framework='mxnet')", "framework 'mxnet' is unknown; use one of torch, tf, keras"),
        ("hvdkit.init('nccl')", "engine 'nccl' is unknown; use auto, serial, horovod, torch, mpi"),
    ):
        done = launch_fresh(f"import hvdkit\n{call}\n")
        assert (done.code, done.stderr) == (1, f"hvdkit: error: {message}\n")
