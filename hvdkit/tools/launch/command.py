"""The command ``hvdkit run``."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from pathlib import Path

import click

from hvdkit.engines.choice import choose_to_start
from hvdkit.engines.start import Host, Start
from hvdkit.engines.table import SPECS, names, spec_of
from hvdkit.errors import EngineError, LaunchError
from hvdkit.process.environment import calling_process, end_of_allocation, library_of
from hvdkit.recipe.declaration import FRAMEWORKS
from hvdkit.tools.launch.hosts import parse_hosts
from hvdkit.tools.launch.job import run_job
from hvdkit.tools.launch.processes import continue_in_child

SUPERVISOR = (sys.executable, "-m", "hvdkit.tools.launch.child")


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("-np", "--processes", type=int, required=True, help="Number of processes.")
@click.option("-H", "--hosts", metavar="HOST:SLOTS,…", help="Where to run them; default: this host.")
@click.option("--engine", default="auto", show_default=True, help=f"auto, {', '.join(names())}.")
@click.option("--controller", help="gloo or mpi; for engine horovod.")
@click.option("--framework", help="torch, tf or keras: lets --engine auto choose well.")
@click.option("--log-dir", type=click.Path(file_okay=False), help="Write a complete log file for each rank.")
@click.option("--report-after", type=float, metavar="SECONDS", help="Name a rank that others wait for; default: 60.")
@click.option(
    "--stuck-after",
    type=float,
    metavar="SECONDS",
    help="End the job if a rank that others wait for stays in one place for so long; default: 600.",
)
@click.option(
    "--max-restarts",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Start a job that fails again, so often at most; recipes go on from their newest checkpoint.",
)
@click.option(
    "--signal-before",
    type=float,
    metavar="SECONDS",
    help="So long before Slurm's time limit let recipes save and end with code 75: start again.",
)
@click.option("--launcher-args", default="", help="Further arguments for horovodrun, torchrun or mpiexec, quoted.")
@click.option("-m", "as_module", is_flag=True, help="Run a module instead of a script file.")
@click.argument("program", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]…")
def run(
    processes: int,
    hosts: str | None,
    engine: str,
    controller: str | None,
    framework: str | None,
    log_dir: str | None,
    report_after: float | None,
    stuck_after: float | None,
    max_restarts: int,
    signal_before: float | None,
    launcher_args: str,
    as_module: bool,
    program: tuple[str, ...],
) -> None:
    """Run SCRIPT on N processes, each line of output labelled with its rank.

    Options stand before the script; everything after it goes to the script. The exit code is that of the first rank
    that fails, and its error is the last line.
    """
    if processes < 1:
        raise LaunchError(f"-np {processes}: the number of processes is at least 1")
    _check_program(program, as_module)
    _check_controller(controller)
    _check_one_of("--framework", framework, FRAMEWORKS)
    places = parse_hosts(hosts, processes) if hosts is not None else [Host("localhost", processes)]
    named = framework or _framework_of(program)
    choice = choose_to_start(engine, processes, library_of(named) if named else None)
    start = Start(
        processes=processes,
        hosts=tuple(places),
        engine=choice.engine,
        program=("-m", *program) if as_module else program,
        supervisor=SUPERVISOR,
        controller=controller,
        launcher_args=tuple(_split(launcher_args)),
        log_dir=str(Path(log_dir).resolve()) if log_dir is not None else None,
        report_after=_seconds("--report-after", report_after),
        stuck_after=_seconds("--stuck-after", stuck_after),
        signal_at=_signal_at(_seconds("--signal-before", signal_before)),
    )
    command = command_line(start)
    click.echo(
        f"hvdkit: engine {choice.engine} ({choice.reason}), {_count(processes)} by {spec_of(choice.engine).started_by}",
        err=True,
    )
    continue_in_child(calling_process())
    outcome = run_job(start, command)
    while outcome.code and not outcome.final and start.restarts < max_restarts:
        start = dataclasses.replace(start, restarts=start.restarts + 1)
        click.echo(f"hvdkit: {outcome.message}; start {start.restarts + 1} of {max_restarts + 1}", err=True)
        outcome = run_job(start, command)
    if outcome.message:
        click.echo(f"hvdkit: error: {outcome.message}", err=True)
    sys.exit(outcome.code)


def command_line(start: Start) -> list[str]:
    """Return the command that starts all ranks of a job, each below its supervisor.

    Raises:
        EngineError: The engine lacks the controller.
        LaunchError: The engine has no controllers, or does not start processes on other hosts.
    """
    spec = spec_of(start.engine)
    if start.controller is not None and start.controller not in spec.controllers:
        having = " or ".join(other.name for other in SPECS if start.controller in other.controllers)
        raise LaunchError(f"--controller is for engine {having}; this job uses engine {start.engine}")
    return spec.command(start)


def _check_controller(controller: str | None) -> None:
    known = tuple(dict.fromkeys(name for spec in SPECS for name in spec.controllers))
    _check_one_of("--controller", controller, known)


def _count(processes: int) -> str:
    return "1 process" if processes == 1 else f"{processes} processes"


def _check_program(program: tuple[str, ...], as_module: bool) -> None:
    if not program:
        raise LaunchError("no script given; write: hvdkit run -np 2 script.py")
    if as_module or Path(program[0]).is_file():
        return
    if Path(program[0]).name.startswith("python"):
        raise LaunchError(f"give the script itself, without {program[0]!r}: hvdkit run -np 2 script.py")
    if Path(program[0]).is_dir():
        raise LaunchError(f"{program[0]!r} is a folder, not a script")
    raise LaunchError(f"script {program[0]!r} does not exist")


def _seconds(option: str, value: float | None) -> float | None:
    if value is not None and not 0.0 < value < float("inf"):
        raise LaunchError(f"{option} {value:g}: give a number of seconds above 0")
    return value


def _signal_at(before: float | None) -> float | None:
    if before is None:
        return None
    end = end_of_allocation()
    if end is None:
        raise LaunchError(
            "--signal-before needs Slurm's time limit (SLURM_JOB_END_TIME), which is not set here; let another "
            "scheduler send SIGUSR1 to hvdkit run"
        )
    return end - before


def _check_one_of(option: str, value: str | None, allowed: tuple[str, ...]) -> None:
    if value is not None and value not in allowed:
        raise EngineError(f"{option} {value!r} is unknown; use {', '.join(allowed[:-1])} or {allowed[-1]}")


def _framework_of(program: tuple[str, ...]) -> str | None:
    """Return the framework that the script's own arguments name, or None."""
    for position, argument in enumerate(program):
        name, equals, value = argument.partition("=")
        if name == "--framework":
            found = value if equals else "".join(program[position + 1 : position + 2])
            return found if found in FRAMEWORKS else None
    return None


def _split(arguments: str) -> list[str]:
    try:
        return shlex.split(arguments)
    except ValueError as error:
        raise LaunchError(f"--launcher-args {arguments!r}: {error}") from None
