"""Every line whole, once, and with the label of its rank."""

import collections
import os
import pty
import re
import select
import subprocess

import pytest
from limits import HANG_SECONDS

from hvdkit.engines.mpi.spec import root_variables
from hvdkit.engines.start import Host, Start
from hvdkit.tools.launch.command import SUPERVISOR, command_line

LOGGING = """
bar = "--bar" in sys.argv
for number in range(200):
    text = f"line {number} of {rank} " + "x" * (number % 7 * 1500) + " end"
    if number % 2:
        print(text)
    else:
        # the way of native libraries: pieces, past Python's own buffers; a bar has stderr for itself
        stream = 1 if bar else 2
        half = len(text) // 2
        os.write(stream, text[:half].encode())
        os.write(stream, text[half:].encode() + b"\\n")
    if bar and number % 20 == 0:
        sys.stderr.write(f"\\r{number // 2}%|###")
        sys.stderr.flush()
if bar:
    sys.stderr.write("\\rall done\\n")
"""
LINE = re.compile(r"\[(\d)\] line (\d+) of (\d) (x*) end")


def check_lines(lines, ranks):
    """Check that each of the 200 lines of each rank is there once, whole, and behind its own label."""
    seen = collections.Counter()
    for line in lines:
        match = LINE.fullmatch(line)
        assert match, f"torn or foreign line: {line[:200]!r}"
        label, number, rank, filler = match.groups()
        assert label == rank
        assert len(filler) == int(number) % 7 * 1500
        seen[int(rank), int(number)] += 1
    assert seen == {(rank, number): 1 for rank in range(ranks) for number in range(200)}


def test_f09_lines_of_four_ranks_are_whole_and_come_once(launch, engine):
    done = launch("-np", 4, "--engine", engine, launch.script(LOGGING))
    assert done.returncode == 0, done.stderr
    first, *stderr = done.stderr.splitlines()
    assert first.startswith(f"hvdkit: engine {engine} ")
    check_lines(done.stdout.splitlines() + stderr, 4)


def test_f09_log_files_are_complete_and_unmixed(launch):
    done = launch("-np", 4, "--engine", "mpi", "--log-dir", "logs/new", launch.script(LOGGING), "--bar")
    assert done.returncode == 0, done.stderr
    files = sorted((launch.folder / "logs/new").iterdir())
    assert [path.name for path in files] == [f"rank-{rank}.log" for rank in range(4)]
    for rank, path in enumerate(files):
        lines = path.read_text().splitlines()
        assert "all done" in lines
        assert sorted(lines) == sorted(
            ["all done", *(f"line {n} of {rank} " + "x" * (n % 7 * 1500) + " end" for n in range(200))]
        )


def test_f09_without_a_terminal_only_the_last_state_of_a_bar_is_shown(launch):
    done = launch("-np", 4, "--engine", "mpi", launch.script(LOGGING), "--bar")
    assert "\r" not in done.stdout + done.stderr
    ends = [f"[{rank}] all done" for rank in range(4)]
    lines = [*done.stdout.splitlines(), *done.stderr.splitlines()[1:]]
    assert sorted(line for line in lines if line in ends) == ends
    check_lines([line for line in lines if line not in ends], 4)


def on_a_terminal(launch, *arguments):
    """Run a job whose output goes to a terminal; return what arrived there."""
    leader, follower = pty.openpty()
    process = launch.start(*arguments, stdout=follower, stderr=follower)
    os.close(follower)
    shown = b""
    while select.select([leader], [], [], HANG_SECONDS)[0]:
        try:
            shown += os.read(leader, 65536)
        except OSError:
            break
    os.close(leader)
    assert process.wait(timeout=HANG_SECONDS) == 0
    return shown


def test_f09_on_a_terminal_rank_0_alone_draws_its_bar(launch):
    script = launch.script("""
for step in range(3):
    sys.stderr.write(f"\\r{step}/2 {sys.stderr.isatty()}")
    sys.stderr.flush()
    time.sleep(0.5)
print()
print("columns", os.get_terminal_size(1).columns if rank == 0 else None)
""")
    shown = on_a_terminal(launch, "-np", 2, "--engine", "mpi", script)
    updates = re.findall(rb"\r\[(\d)\] (\d/2 \w+)\x1b\[K", shown)
    assert updates == [(b"0", b"0/2 True"), (b"0", b"1/2 True"), (b"0", b"2/2 True")]
    assert b"[1] 2/2 False\r\n" in shown
    assert b"[0] columns " in shown


def test_errors_of_any_rank_stay_visible(launch):
    script = launch.script('print("about to fail", file=sys.stderr) if rank == 3 else None\nsys.exit(rank == 3)\n')
    done = launch("-np", 4, "--engine", "mpi", script)
    assert "[3] about to fail" in done.stderr.splitlines()


def test_a_last_line_without_an_end_is_shown(launch):
    done = launch("-np", 1, launch.script('sys.stdout.write("a\\nno end")\n'))
    assert done.stdout == "[0] a\n[0] no end\n"


def test_lines_appear_when_they_are_written(launch):
    process = launch.start("-np", 1, launch.script('print("first")\ntime.sleep(600)\n'))
    assert select.select([process.stdout], [], [], HANG_SECONDS)[0], "no line of a script that sleeps"
    assert process.stdout.readline() == "[0] first\n"
    process.terminate()
    process.communicate(timeout=HANG_SECONDS)


def test_a_reader_that_goes_away_ends_the_job(launch):
    script = launch.script("while True:\n    print('y' * 100)\n")
    process = launch.start("-np", 2, "--engine", "mpi", script)
    process.stdout.readline()
    process.stdout.close()
    process.wait(timeout=HANG_SECONDS)
    launch.wait_until(lambda: not launch.processes())


@pytest.mark.mpi
@pytest.mark.parametrize("status", [0, 5])
def test_under_a_bare_mpiexec_the_child_module_needs_no_job_folder(launch, status):
    pytest.importorskip("mpi4py")
    script = launch.script(f"print('rank', rank)\nsys.exit({status} * rank)\n")
    start = Start(2, (Host("localhost", 2),), "mpi", (script,), SUPERVISOR)
    done = subprocess.run(
        command_line(start),
        cwd=launch.folder,
        env=launch.environment(**root_variables()),
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    assert done.returncode == status
    shown = set(re.findall(r"rank \d", done.stdout))
    # mpiexec kills rank 0 when rank 1 has failed, perhaps before rank 0 has printed
    assert shown == {"rank 0", "rank 1"} if status == 0 else "rank 1" in shown


def test_s02_a_full_output_does_not_hold_up_the_job(launch):
    with open("/dev/full", "w") as full:
        process = launch.start("-np", 2, "--engine", "mpi", launch.script(LOGGING), stdout=full)
        _, err = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 0, err
    *_, last = err.splitlines()
    assert last == "hvdkit: some lines of the ranks could not be written: No space left on device"


def test_s02_a_slow_reader_behind_a_pipe_that_does_not_block_gets_every_line(launch):
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    process = launch.start("-np", 2, "--engine", "mpi", launch.script(LOGGING), "--bar", stdout=writer)
    os.close(writer)
    received = b""
    while data := os.read(reader, 4096):
        received += data
        # the pipe is full nearly all the time
        select.select([], [], [], 0.001)
    os.close(reader)
    _, err = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 0, err
    check_lines(received.decode().splitlines(), 2)


def test_s02_a_log_file_on_a_full_disk_ends_and_training_does_not(launch):
    (launch.folder / "logs").mkdir()
    (launch.folder / "logs" / "rank-1.log").symlink_to("/dev/full")
    done = launch("-np", 2, "--engine", "mpi", "--log-dir", "logs", launch.script(LOGGING))
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("[1] hvdkit: the log file ends here: No space left on device") >= 1
    assert (launch.folder / "logs" / "rank-0.log").read_text().count("line ") == 200
