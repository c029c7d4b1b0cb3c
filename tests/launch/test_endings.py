"""How a rank fails is how the job fails: its exit code, and its error as the last line."""

import os
import re
import signal
import time
from pathlib import Path

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


def test_s01_a_rank_fails_in_time_though_the_launchers_folder_is_gone(launch, promised, engine):
    script = launch.script("""
import shutil
if rank == 1:
    time.sleep(0.5)
    shutil.rmtree(os.environ["HVDKIT_FAILURE_DIR"])
    open("failing", "w").close()
    raise ValueError("bad value")
time.sleep(300)
""")
    done = launch("-np", 2, "--engine", engine, script)
    assert done.returncode != 0
    assert "ValueError: bad value" in done.stderr
    assert ended_in_time(launch, promised)


def test_s08_a_signal_that_was_ignored_stays_ignored(launch):
    script = launch.script("""
open(f"ready-{rank}", "w").close()
while not os.path.exists("go"):
    time.sleep(0.05)
""")
    ignored = lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)  # noqa: E731
    process = launch.start("-np", 2, "--engine", "mpi", script, preexec_fn=ignored)
    launch.wait_until(lambda: len(list(launch.folder.glob("ready-*"))) == 2)
    os.killpg(process.pid, signal.SIGHUP)
    time.sleep(1.0)
    (launch.folder / "go").touch()
    _, err = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 0, err


def test_a_second_ctrl_c_ends_at_once(launch):
    script = launch.script("""
import signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(f"ready-{rank}", "w").close()
time.sleep(300)
""")
    process = launch.start("-np", 2, "--engine", "mpi", script)
    launch.wait_until(lambda: len(list(launch.folder.glob("ready-*"))) == 2)
    process.send_signal(signal.SIGINT)
    time.sleep(1.0)
    process.send_signal(signal.SIGINT)
    asked = time.monotonic()
    process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 130
    # without the second it takes five seconds until scripts are killed
    assert time.monotonic() - asked < 3.5


def test_s15_the_last_line_is_short_and_names_where_the_whole_text_is(launch):
    script = launch.script("""
if rank == 1:
    raise ValueError("a long story " * 200)
time.sleep(300)
""")
    done = launch("-np", 2, "--engine", "mpi", script)
    last = done.stderr.splitlines()[-1]
    assert last.startswith("hvdkit: error: rank 1: ValueError: a long story a long story")
    assert len(last.removeprefix("hvdkit: error: ")) <= 300
    whole = Path(re.search(r"the whole text: (.*)\)$", last)[1])
    try:
        assert whole.read_text().count("a long story") >= 200
        assert "Traceback" in whole.read_text()
    finally:
        whole.unlink()


def test_s15_the_last_line_names_the_rank_that_failed_and_not_the_one_that_says_so(launch):
    script = launch.script("""
from hvdkit.process import failures
if rank == 0:
    failures.record("rank 1 failed: its process is gone (killed or crashed)", 1, secondary=True)
    os._exit(1)
time.sleep(300)
""")
    done = launch("-np", 2, "--engine", "mpi", script)
    assert done.stderr.splitlines()[-1] == "hvdkit: error: rank 1: its process is gone (killed or crashed)"


@pytest.mark.parametrize("late", [0, 1])
def test_s15_an_error_of_rank_0_that_all_raise_is_rank_0s(launch, engine, late):
    script = launch.script(f"""
import hvdkit
from hvdkit.errors import CheckpointError
world = hvdkit.init()
def failing():
    raise CheckpointError("no file")
try:
    world.root_only(failing)
except CheckpointError:
    time.sleep(0.3 * (rank == {late}))
    raise
""")
    done = launch("-np", 2, "--engine", engine, script)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "hvdkit: error: rank 0: no file"


LATE = """
if rank == 1:
    open("failing", "w").close()
    {action}
import hvdkit
hvdkit.init()
print("joined", flush=True)
"""


def test_s04_a_rank_that_does_not_come_to_init_is_named_and_ends_the_job(launch, promised, engine):
    script = launch.script(LATE.format(action="time.sleep(300)"))
    limits = ("--report-after", 2, "--stuck-after", 4)
    done = launch("-np", 2, "--engine", engine, *limits, script)
    assert done.returncode == 1
    assert re.search(
        r"^hvdkit: rank 0 has waited \d s in init\(\); rank 1 has not come there$", done.stderr, re.MULTILINE
    )
    last = "hvdkit: error: rank 1: it has not come to init(), where rank 0 has waited 4 s"
    assert done.stderr.splitlines()[-1] == last
    assert ended_in_time(launch, promised)


@pytest.mark.parametrize("after", [0, 4])
def test_s04_a_rank_that_ends_before_init_is_named(launch, promised, engine, after):
    # a rank that already waits makes some launchers end the job on their own
    action = f"time.sleep({after}); open('failing', 'w').close(); sys.exit()"
    done = launch("-np", 2, "--engine", engine, launch.script(LATE.format(action=action)))
    assert done.returncode != 0
    last = "hvdkit: error: rank 1: it has ended before init(), where rank 0 waits for it"
    assert done.stderr.splitlines()[-1] == last
    assert ended_in_time(launch, promised)


@pytest.mark.parametrize("option", ["--report-after", "--stuck-after"])
def test_limits_are_seconds(launch, option):
    done = launch("-np", 2, option, "-1", launch.script(""))
    assert done.returncode != 0
    assert done.stderr.splitlines() == [f"hvdkit: error: {option} -1: give a number of seconds above 0"]


BROKEN = """
import hvdkit
world = hvdkit.init()
world.barrier()
if rank == 1:
    open("failing", "w").close()
    sys.exit()
# as a graph does whose sum breaks off: it has said that it waits, and its error leaves no chance to take that back
world.engine.control.begin("the reduction of gradients")
time.sleep(0.5)
raise RuntimeError("the sum broke off")
"""


@pytest.mark.mpi
def test_s15_a_rank_whose_sum_breaks_off_lets_the_one_be_named_that_has_left(launch, promised):
    done = launch("-np", 2, "--engine", "mpi", launch.script(BROKEN))
    last = "hvdkit: error: rank 1: it has left the job while rank 0 waits in the reduction of gradients"
    assert done.stderr.splitlines()[-1] == last
    assert ended_in_time(launch, promised)
