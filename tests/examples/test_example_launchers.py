"""The examples under the engines' own launchers, and the collectives on every engine."""

from __future__ import annotations

import ast
import importlib.util
import shlex

import numpy as np
import pytest
from example_runs import (
    MNIST,
    every,
    hvdkit_run,
    keras_elsewhere,
    one_engine_each,
    one_process,
    succeed,
)
from ranks import UNDER_KERAS_2, on, slowly

from hvdkit.engines.horovod.installed import gloo_built, mpi_built

HOROVOD = [entry for entry in every() if entry.values[0].engine == "horovod"]
MPI = [entry for entry in [*every(), *keras_elsewhere()] if entry.values[0].engine == "mpi"]
HOROVODRUN = ["horovodrun", "-np", "2"]
needs_mpi = pytest.mark.skipif(not mpi_built(), reason="there is no Horovod built with MPI")
needs_gloo = pytest.mark.skipif(not gloo_built(), reason="there is no Horovod built with Gloo")


@pytest.fixture(scope="session")
def mpirun():
    """The MPI command line of Horovod's own introduction, but for the slots; Open MPI 5 wants two dashes twice."""
    dash = "--" if "(Open MPI) 5" in succeed("mpirun", "--version").stdout else "-"
    options = f"--oversubscribe {dash}bind-to none {dash}map-by slot -mca pml ob1 -mca btl ^openib"
    return ["mpirun", "-np", "2", *shlex.split(options)]


def train(summaries, digits, combination, *launcher):
    """Train one epoch under a launcher and return the summary."""
    words = ("--framework", combination.framework, "--data-dir", str(digits), "--epochs", "1")
    command = (*launcher, MNIST, *words)
    return summaries.of_command(*command, env=dict(combination.env))


def check(summary, engine, size=2):
    assert (summary["engine"], summary["size"], len(summary["epochs"])) == (engine, size, 1)
    assert summary["global_batch_size"] == 64 * size
    assert len(summary["weights_sha256"]) == size
    assert len(set(summary["weights_sha256"])) == 1


@pytest.mark.parametrize("combination", HOROVOD)
def test_horovodrun(combination, digits, summaries):
    check(train(summaries, digits, combination, *HOROVODRUN, "python"), "horovod")


@needs_gloo
@pytest.mark.slow
@pytest.mark.parametrize("combination", HOROVOD)
def test_horovodrun_with_gloo(combination, digits, summaries):
    check(train(summaries, digits, combination, *HOROVODRUN, "--gloo", "python"), "horovod")


@needs_mpi
@pytest.mark.parametrize("combination", slowly(HOROVOD) if UNDER_KERAS_2 else one_engine_each(HOROVOD))
def test_mpirun_as_horovod_documents_it(combination, digits, summaries, mpirun):
    words = ("--framework", combination.framework, "--data-dir", str(digits), "--epochs", "1")
    command = (*mpirun, "python", MNIST, "--engine", "horovod", *words)
    check(summaries.of_command(*command), "horovod")


@pytest.mark.parametrize("combination", slowly(MPI) if UNDER_KERAS_2 else MPI)
def test_mpirun_with_engine_mpi(combination, digits, summaries, mpirun):
    words = ("--framework", combination.framework, "--data-dir", str(digits), "--epochs", "1")
    command = (*mpirun, "python", MNIST, "--engine", "mpi", *words)
    check(summaries.of_command(*command, env=dict(combination.env)), "mpi")


@pytest.mark.parametrize("combination", on("torch", ("torch",)))
def test_torchrun(combination, digits, summaries):
    check(train(summaries, digits, combination, "torchrun", "--standalone", "--nproc-per-node=2"), "torch")


@pytest.mark.parametrize("combination", one_process())
def test_f07_plain_python_is_one_process_with_the_rate_unchanged(combination, digits, summaries):
    summary = train(summaries, digits, combination, "python")
    check(summary, "serial", size=1)
    assert summary["learning_rate"] == 0.001


@pytest.mark.skipif(importlib.util.find_spec("horovod") is not None, reason="Horovod is installed here")
@pytest.mark.parametrize("combination", one_process())
def test_plain_python_needs_no_horovod(combination, digits, summaries):
    check(train(summaries, digits, combination, "python"), "serial", size=1)


def expected_collectives(size):
    """Return what each collective gives on each rank, by NumPy."""
    ranks = np.arange(size)
    gathered = np.repeat(ranks, ranks + 1)
    pairs = np.stack([ranks.astype(float), np.ones(size)], axis=1)
    whole = np.stack([ranks, np.ones(size, int)], axis=1)
    sent = ranks[None, :] + 10 * ranks[:, None]
    others = ["-"] * (size - 1)
    return {
        "allreduce mean": [pairs.mean(axis=0).tolist()] * size,
        "allreduce sum": [whole.sum(axis=0).tolist()] * size,
        "allreduce min": [ranks.min()] * size,
        "allreduce max": [ranks.max()] * size,
        "reduce sum to 0": [ranks.sum(), *others],
        "allgather": [gathered.tolist()] * size,
        "broadcast from 0": [[10]] * size,
        "gather to 0": [[[rank] * rank for rank in range(size)], *others],
        "scatter from 0": [list(range(rank + 1)) for rank in range(size)],
        "alltoall": [sent[:, rank].tolist() for rank in range(size)],
    }


def printed_values(text):
    """Return what collectives.py printed: name, then one value per rank."""
    found = {}
    for line in text.splitlines():
        head, _, value = line.removeprefix("[0] ").partition(": ")
        name, _, rank = head.rpartition(" rank ")
        if rank.isdigit():
            assert int(rank) == len(found.setdefault(name.strip(), []))
            found[name.strip()].append(value)
    return found


@pytest.mark.parametrize("combination", on("core", ("horovod", "torch", "mpi"), (2, 3)))
def test_each_collective_prints_what_numpy_gives(combination):
    printed = printed_values(succeed(*hvdkit_run(combination, "examples/collectives.py")).stdout)
    expected = expected_collectives(combination.size)
    assert list(printed) == list(expected)
    for name, values in expected.items():
        for rank, value in enumerate(values):
            assert_printed(name, printed[name][rank], value)


def assert_printed(name, text, value):
    """Compare a printed value; a gathered list is printed as one list after another."""
    if name == "gather to 0" and value != "-":
        text = f"[{text.replace('] [', '], [')}]"
    shown = text if value == "-" else ast.literal_eval(text)
    assert shown == value, name


@pytest.mark.parametrize("combination", one_engine_each(on("core", ("mpi", "torch", "horovod"), (2, 3))))
def test_pi_is_what_numpy_gives_for_the_same_darts(combination):
    samples, size = 200_001, combination.size
    printed = succeed(*hvdkit_run(combination, "examples/pi.py", "--samples", str(samples))).stdout
    inside = 0
    for rank in range(size):
        x, y = np.random.default_rng(rank).random((2, samples // size + (rank < samples % size)))
        inside += int((x**2 + y**2 <= 1).sum())
    assert f"pi is about {4 * inside / samples:.5f} ({samples} darts, {size} ranks" in printed
