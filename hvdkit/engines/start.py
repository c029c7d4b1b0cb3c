"""What ``hvdkit run`` is to start, as an engine's command line needs to know it."""

from __future__ import annotations

import contextlib
import shlex
import socket
from collections.abc import Iterable
from dataclasses import dataclass

from hvdkit.errors import LaunchError
from hvdkit.process.environment import node_name


@dataclass(frozen=True)
class Host:
    """A host and how many processes may run there."""

    name: str
    slots: int

    @property
    def is_here(self) -> bool:
        """Whether this is the host on which the launcher runs."""
        if self.name in ("localhost", socket.gethostname(), node_name()):
            return True
        # an address to which a socket can be bound is one of this host's own
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind((self.name, 0))
            return True
        return False

    def __str__(self) -> str:
        return f"{self.name}:{self.slots}"


@dataclass(frozen=True)
class Start:
    """What to start.

    Attributes:
        processes: The number of ranks.
        hosts: Where, with the number of processes on each.
        engine: The name of the engine.
        program: The script and its arguments, or ``-m``, a module and its arguments.
        supervisor: The command that runs a program as one rank and watches it; the program follows it.
        controller: One of the engine's controllers, or None for its own choice.
        launcher_args: Passed to the launcher as they are.
        log_dir: Folder for complete log files, one for each rank.
        report_after, stuck_after: Seconds that ranks may wait for another; None for the usual ones.
        restarts: How often this job was started before.
        signal_at: When ranks are told that the scheduler's time is nearly up, in seconds of ``time.time()``; or None.
    """

    processes: int
    hosts: tuple[Host, ...]
    engine: str
    program: tuple[str, ...]
    supervisor: tuple[str, ...]
    controller: str | None = None
    launcher_args: tuple[str, ...] = ()
    log_dir: str | None = None
    report_after: float | None = None
    stuck_after: float | None = None
    restarts: int = 0
    signal_at: float | None = None

    @property
    def is_local(self) -> bool:
        """Whether all processes run on this host."""
        return all(host.is_here for host in self.hosts)

    @property
    def processes_here(self) -> int:
        """How many of the processes run on this host; on a host that only launches, as many as on the fullest."""
        here = sum(host.slots for host in self.hosts if host.is_here)
        return here or max(host.slots for host in self.hosts)

    @property
    def rank_command(self) -> list[str]:
        """The command of each rank."""
        return [*self.supervisor, *self.program]

    def refuse_other_hosts(self, where: str, commands: Iterable[str]) -> None:
        """Refuse a job of which a part runs elsewhere, with the commands that do it by hand.

        Raises:
            LaunchError: There is such a part.
        """
        if self.is_local:
            return
        names = ", ".join(host.name for host in self.hosts if not host.is_here)
        listing = "".join(f"\n  {command} {shlex.join(self.program)}" for command in commands)
        raise LaunchError(f"engine {self.engine} starts processes on this host only, not on {names}; {where}:{listing}")
