"""No process of a job outlives it."""

import importlib.util
import os
import signal
from pathlib import Path

import pytest
from limits import HANG_SECONDS

WORKERS = """
import multiprocessing, subprocess, signal
stubborn = "--stubborn" in sys.argv
def load():
    time.sleep(300)
if stubborn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
multiprocessing.get_context("fork").Process(target=load).start()
subprocess.Popen(["sleep", "300"], start_new_session=True)
open(f"ready-{rank}", "w").write(str(os.getpid()))
time.sleep(300)
"""


def started(launch, *arguments, **options):
    """Start three ranks with a loader worker and a process in a separate session each; wait for them."""
    process = launch.start("-np", 3, *arguments, **options)
    ready = [launch.folder / f"ready-{rank}" for rank in range(3)]
    launch.wait_until(lambda: all(path.is_file() and path.read_text() for path in ready))
    assert len(launch.processes()) > 3 * 4
    return process, [int(path.read_text()) for path in ready]


@pytest.mark.parametrize(
    ("signum", "manner"), [(signal.SIGINT, "polite"), (signal.SIGTERM, "polite"), (signal.SIGTERM, "stubborn")]
)
def test_f10_nothing_is_left_after_a_signal_to_the_launcher(launch, promised, engine, signum, manner):
    process, _ = started(launch, "--engine", engine, launch.script(WORKERS), f"--{manner}")
    process.send_signal(signum)
    launch.end_within(promised)
    _, err = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 128 + signum
    assert err.splitlines()[-1] == f"hvdkit: error: ended by {signal.Signals(signum).name}"


def test_f10_nothing_is_left_after_a_rank_is_killed(launch, promised, engine):
    process, pids = started(launch, "--engine", engine, launch.script(WORKERS))
    os.kill(pids[1], signal.SIGKILL)
    launch.end_within(promised)
    _, err = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 128 + signal.SIGKILL
    assert err.splitlines()[-1] == "hvdkit: error: rank 1: killed by SIGKILL"
    again = launch("-np", 3, "--engine", engine, launch.script("print(rank)\n"))
    assert again.returncode == 0
    assert sorted(again.stdout.split()) == ["0", "1", "2", "[0]", "[1]", "[2]"]


def test_f10_nothing_is_left_after_a_supervisor_is_killed(launch, promised, engine):
    process, pids = started(launch, "--engine", engine, launch.script(WORKERS))
    supervisor = int(Path(f"/proc/{pids[1]}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(supervisor, signal.SIGKILL)
    launch.end_within(promised)
    _, err = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 137
    assert err.splitlines()[-1] == "hvdkit: error: rank 1: the process that supervises it was killed"


@pytest.mark.parametrize("manner", ["polite", "stubborn"])
def test_f10_nothing_is_left_after_the_launcher_is_killed(launch, promised, engine, manner):
    process, _ = started(launch, "--engine", engine, launch.script(WORKERS), f"--{manner}")
    process.kill()
    launch.end_within(promised)


def test_f10_nothing_is_left_after_the_process_that_watches_over_the_job_is_killed(launch, promised, engine):
    process, _ = started(launch, "--engine", engine, launch.script(WORKERS))
    (watching,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(watching), signal.SIGKILL)
    launch.end_within(promised)
    _, err = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 128 + signal.SIGKILL
    assert err.splitlines()[-1] == "hvdkit: error: the process that watches over the job was killed by SIGKILL"


def test_only_the_jobs_own_processes_are_ended(launch, tmp_path):
    other = type(launch)(tmp_path / "other")
    other.folder.mkdir()
    bystander = started_one(other)
    process = started_one(launch)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=HANG_SECONDS)
    assert not launch.processes()
    assert bystander.poll() is None
    assert len(other.processes()) > 3
    bystander.send_signal(signal.SIGTERM)
    bystander.communicate(timeout=HANG_SECONDS)
    assert not other.processes()


def started_one(launch):
    process = launch.start("-np", 1, launch.script(WORKERS))
    launch.wait_until(lambda: (launch.folder / "ready-0").is_file())
    return process


@pytest.mark.mpi
@pytest.mark.skipif(importlib.util.find_spec("mpi4py") is None, reason="mpi4py is not installed")
def test_a_killed_mpirun_leaves_nothing_in_the_way_of_a_later_one(launch, promised):
    # Open MPI names its files after its process id, does not start where they exist, and leaves them when killed
    temporary = launch.folder / "temporary"
    temporary.mkdir()
    process, _ = started(launch, "--engine", "mpi", launch.script(WORKERS), env={"TMPDIR": str(temporary)})
    assert not list(temporary.glob("ompi*"))
    process.kill()
    launch.end_within(promised)
