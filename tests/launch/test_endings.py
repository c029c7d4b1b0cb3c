"""How a rank fails is how the job fails: its exit code, and its error as the last line."""

import signal
import time

import pytest
from limits import HANG_SECONDS, PROMISED_SECONDS

# the other ranks wait for ever, and know nothing of hvdkit
FAILING = """
if rank == 1:
    time.sleep(0.5)
    open("failing", "w").close()
    {action}
time.sleep(300)
"""


def ended_in_time(launch, promised):
    """Whether at most 15 s passed since the rank failed."""
    failed = (launch.folder / "failing").stat().st_mtime
    return time.time() - failed < promised(PROMISED_SECONDS, since=failed)


@pytest.mark.parametrize(
    ("action", "code", "message"),
    [
        ("raise ValueError('bad value\\nsecond line')", 1, "ValueError: bad value second line"),
        ("sys.exit(7)", 7, "exit code 7"),
        ("sys.exit('no data')", 1, "no data"),
        ("os._exit(9)", 9, "exit code 9"),
        ("os.kill(os.getpid(), 11)", 128 + signal.SIGSEGV, "killed by SIGSEGV"),
        ("raise KeyboardInterrupt", 130, "interrupted"),
    ],
)
def test_the_first_failing_rank_decides(launch, promised, action, code, message):
    done = launch("-np", 3, "--engine", "mpi", launch.script(FAILING.format(action=action)))
    assert done.returncode == code
    assert done.stderr.splitlines()[-1] == f"hvdkit: error: rank 1: {message}"
    assert ended_in_time(launch, promised)


def test_every_launcher_hands_on_code_and_error(launch, promised, engine):
    script = launch.script(FAILING.format(action="raise KeyError('lost')"))
    done = launch("-np", 2, "--engine", engine, script)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "hvdkit: error: rank 1: KeyError: 'lost'"
    assert f'File "{launch.folder / script}", line' in done.stderr
    assert "hvdkit/tools/launch" not in done.stderr
    assert ended_in_time(launch, promised)


@pytest.mark.mpi
def test_a_rank_that_hangs_in_mpi_finalize_is_ended(launch, promised):
    pytest.importorskip("mpi4py")
    script = launch.script("""
from mpi4py import MPI
if rank == 1:
    open("failing", "w").close()
    sys.exit(4)
MPI.COMM_WORLD.Barrier()
""")
    done = launch("-np", 2, "--engine", "mpi", script)
    assert done.returncode == 4
    assert done.stderr.splitlines()[-1] == "hvdkit: error: rank 1: exit code 4"
    assert ended_in_time(launch, promised)


def test_an_hvdkit_error_is_one_line(launch):
    done = launch("-np", 1, launch.script("from hvdkit.errors import DataError\nraise DataError('it is empty')\n"))
    assert done.returncode == 1
    assert done.stderr.splitlines()[1:] == ["[0] hvdkit: error: it is empty", "hvdkit: error: rank 0: it is empty"]


def test_a_peer_that_noticed_the_failure_is_not_named_as_the_first(launch):
    script = launch.script("""
from hvdkit.process import failures
if rank == 0:
    failures.record("rank 1 failed: it went away", 1, secondary=True)
    time.sleep(300)
time.sleep(0.5)
raise ValueError("the cause")
""")
    done = launch("-np", 2, "--engine", "mpi", script)
    assert done.stderr.splitlines()[-1] == "hvdkit: error: rank 1: ValueError: the cause"


def test_a_stopped_rank_does_not_hold_up_the_end(launch, engine):
    script = launch.script("""
import signal
if rank == 0:
    os.kill(os.getpid(), signal.SIGSTOP)
time.sleep(1)
sys.exit(rank)
""")
    process = launch.start("-np", 2, "--engine", engine, script)
    launch.wait_until(lambda: process.poll() is not None)
    assert process.returncode == 1
    assert process.communicate()[1].splitlines()[-1] == "hvdkit: error: rank 1: exit code 1"


def test_a_launcher_that_fails_by_itself_is_quoted(launch):
    done = launch("-np", 2, "--engine", "mpi", "--launcher-args=--no-such-option", launch.script("print(rank)\n"))
    assert done.returncode != 0
    assert "no-such-option" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("hvdkit: error: mpiexec ended with exit code ")


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_signals_reach_the_script(launch, signum):
    script = launch.script(f"""
import signal
def note(number, frame):
    open(f"got-{{rank}}", "w").write(str(number))
    sys.exit(0)
signal.signal({int(signum)}, note)
open(f"ready-{{rank}}", "w").close()
time.sleep(300)
""")
    process = launch.start("-np", 2, "--engine", "mpi", script)
    launch.wait_until(lambda: len(list(launch.folder.glob("ready-*"))) == 2)
    process.send_signal(signum)
    process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 128 + signum
    assert [(launch.folder / f"got-{rank}").read_text() for rank in range(2)] == [str(int(signum))] * 2


def test_an_excepthook_of_the_script_is_used(launch):
    script = launch.script("sys.excepthook = lambda *a: print('my own hook')\nraise ValueError('x')\n")
    done = launch("-np", 1, script)
    assert done.stdout == "[0] my own hook\n"
    assert done.stderr.splitlines()[-1] == "hvdkit: error: rank 0: ValueError: x"
    assert done.returncode == 1


@pytest.mark.mpi
def test_a_launcher_that_cannot_start_the_ranks_has_its_own_words_shown(launch):
    pytest.importorskip("mpi4py")
    done = launch("-np", 2, "--engine", "mpi", "--launcher-args=--no-such-option", launch.script(""))
    assert done.returncode != 0
    assert "no-such-option" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("hvdkit: error: mpiexec ended with exit code")
