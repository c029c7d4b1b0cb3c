"""The faults of docs/reliability.md that take seconds, on the first engine that is here."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from ranks import on, slowly

from faults.jobs import run
from faults.kills import kill_a_writer

QUICK = ("raise_in_a_step", "nan_on_a_rank", "stop_a_rank", "temporary_folder_gone")
MOUNTED = ("disk_full", "read_only")
LOOPS = [*on("torch", ("torch",)), *on("tf", ("mpi",))]

pytestmark = pytest.mark.processes


def _may_mount():
    return (
        shutil.which("unshare") and not subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode
    )


@pytest.mark.parametrize("combination", [*LOOPS, *slowly(on("keras", ("mpi",)))])
@pytest.mark.parametrize("name", QUICK)
def test_a_fault_ends_the_job_as_the_table_says(combination, name):
    taken = run(name, combination.framework, combination.engine)
    assert not taken.problem, taken


@pytest.mark.parametrize("combination", LOOPS[:1])
def test_a_fault_in_a_loader_worker_is_one_line(combination):
    taken = run("raise_in_a_worker", combination.framework, combination.engine)
    assert not taken.problem, taken
    assert taken.last.endswith("ValueError: planted")


@pytest.mark.skipif(not _may_mount(), reason="needs the right to mount a disk")
@pytest.mark.parametrize("combination", LOOPS)
@pytest.mark.parametrize("name", MOUNTED)
def test_a_disk_that_takes_no_file_is_named(combination, name):
    taken = run(name, combination.framework, combination.engine)
    assert not taken.problem, taken


@pytest.mark.parametrize("seconds", [0.0, 0.05, 0.2])
def test_a_writer_that_is_killed_leaves_whole_files(seconds):
    assert kill_a_writer(seconds) == ""
