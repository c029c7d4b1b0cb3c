"""Every fault: what goes wrong, who does it, and how the job should end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from faults.jobs import FaultyJob

ALL = ("torch", "tf", "keras")
Act = Callable[["FaultyJob"], None]
GOES_ON, ENDS = "goes on", "ends"


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong.

    Attributes:
        words: What, for the table.
        expected: ``ends`` or ``goes on``.
        act: Done to the running job from outside; None where rank 1's script does it (``training.py``).
        options: More arguments of ``hvdkit run``.
        frameworks: Where it can happen.
        engines: Where it can happen; empty for all.
        names: What the last line must hold.
        limit: Seconds from the fault to the end of the job's last process.
        files: How many files must be there and whole at the end of a job that ends.
    """

    words: str
    expected: str = ENDS
    act: Act | None = None
    options: tuple[str, ...] = ()
    frameworks: tuple[str, ...] = ALL
    engines: tuple[str, ...] = ()
    names: str = "rank 1"
    limit: float = 15.0
    files: int = 1


def _kill(which: str, signum: int = signal.SIGKILL) -> Act:
    def act(job: FaultyJob) -> None:
        os.kill(job.pid_of(which), signum)

    return act


def _ctrl_c_twice(job: FaultyJob) -> None:
    os.kill(job.pid_of("launcher"), signal.SIGINT)
    time.sleep(1.0)
    os.kill(job.pid_of("launcher"), signal.SIGINT)


def _stop_and_continue_all(job: FaultyJob) -> None:
    for signum in (signal.SIGSTOP, signal.SIGCONT):
        for pid in job.processes():
            os.kill(pid, signum)
        time.sleep(20.0 if signum == signal.SIGSTOP else 0.0)


def _load_the_machine(job: FaultyJob) -> None:
    code = "import time\nend = time.time() + 30\nwhile time.time() < end: pass"
    job.beside = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(4 * (os.cpu_count() or 1))]


STUCK = ("--report-after", "3", "--stuck-after", "6")
FAULTS: dict[str, Fault] = {
    "raise_before_a_step": Fault("an exception before a step"),
    "raise_in_a_step": Fault("an exception in a step"),
    "raise_after_a_step": Fault("an exception after a step"),
    "raise_in_a_worker": Fault("an exception in a loader worker", frameworks=("torch",), names="planted"),
    "raise_at_the_epochs_end": Fault("an exception in a callback at an epoch's end"),
    "sys_exit": Fault("`sys.exit(3)`"),
    "os_exit": Fault("`os._exit(4)`"),
    "sigint": Fault("SIGINT to the launcher", act=_kill("launcher", signal.SIGINT), names="SIGINT"),
    "sigterm": Fault("SIGTERM to the launcher", act=_kill("launcher", signal.SIGTERM), names="SIGTERM"),
    "sighup": Fault("SIGHUP to the launcher", act=_kill("launcher", signal.SIGHUP), names="SIGHUP"),
    "ctrl_c_twice": Fault("Ctrl-C twice", act=_ctrl_c_twice, names="SIGINT"),
    "kill_rank_1": Fault("SIGKILL of a rank", act=_kill("rank 1")),
    "kill_rank_0": Fault("SIGKILL of rank 0", act=_kill("rank 0"), names="rank 0"),
    "kill_a_supervisor": Fault("SIGKILL of a rank's supervisor", act=_kill("supervisor 1")),
    "kill_the_launcher": Fault("SIGKILL of the launcher", act=_kill("launcher"), names=""),
    "stop_a_rank": Fault("SIGSTOP of a rank", act=_kill("rank 1", signal.SIGSTOP), options=STUCK, limit=30.0),
    "stop_and_continue_all": Fault("SIGSTOP of all for 20 s, then SIGCONT", GOES_ON, _stop_and_continue_all),
    "hold_the_interpreter": Fault("the interpreter's lock is held for 30 s", GOES_ON),
    "load_the_machine": Fault("4 busy processes for each core, for 30 s", GOES_ON, _load_the_machine),
    "one_step_less": Fault("one step less on a rank"),
    "another_shape": Fault("another shape in a collective", names="disagree"),
    "another_order": Fault("another order of collectives", names="disagree"),
    "collective_on_rank_0_alone": Fault("a collective inside `if rank == 0`", names="waits in barrier"),
    "nan_on_a_rank": Fault("NaN in one rank's loss", names="NaN"),
    "disk_full": Fault("the disk of the checkpoints is full", names="No space left on device", files=0),
    "read_only": Fault("the folder of the checkpoints is read-only", names="Read-only file system", files=0),
    "no_folder": Fault("a file stands in the place of the folder", names="File exists", files=0),
    "temporary_folder_gone": Fault("the launcher's temporary folder is removed, then an exception"),
}
