"""Verifies a script: starts the runs, gathers what they leave behind, and has it judged."""

from __future__ import annotations

import ast
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from hvdkit.engines.choice import choose_to_start
from hvdkit.errors import RecipeError
from hvdkit.process.environment import library_of
from hvdkit.recipe.declaration import FRAMEWORKS
from hvdkit.tools.verification.preflight import check_framework
from hvdkit.tools.verification.report import Report
from hvdkit.tools.verification.scripts.job import DOUBLED, NUDGED, PLAIN, RANKS, SINGLE, WHOLE, ScriptJob
from hvdkit.tools.verification.scripts.judge import judge
from hvdkit.tools.verification.scripts.launching import run_alone, run_ranks
from hvdkit.tools.verification.scripts.seen import Seen

_COMPARED = 80

Say = Callable[[str], None]


def verify_script(script: str, arguments: list[str], np: int, steps: int, engine: str, say: Say) -> Report:
    """Check that a script with the eight lines computes on N processes what one would; it stays as it is.

    Args:
        script: The file.
        arguments: Its own arguments.
        np: Processes, at least 2.
        steps: Updates, about: an epoch is cut to half of them, and from the third on to one.
        engine: ``auto``, ``horovod``, ``torch`` or ``mpi``.
        say: Is told what goes on, one line at a time.

    Raises:
        RecipeError: An argument is wrong, the script does not use hvdkit, it fails on one process, or it never trains.
        EngineError: The engine is unknown, not installed, or does not serve the framework.
    """
    if np < 2 or steps < 2:
        raise RecipeError(f"verify got np={np} and steps={steps}; a script needs at least 2 of each")
    framework = framework_of(script)
    check_framework(framework)
    if library_of(framework) == "jax":
        raise RecipeError(
            "a script on Keras and JAX cannot be verified: fit compiles its steps as a whole; give a recipe"
        )
    chosen = choose_to_start(engine, np, library_of(framework)).engine
    report = Report(Path(script).name, framework, chosen, np, 0, "the script's own precision")
    with tempfile.TemporaryDirectory(prefix="hvdkit-verify-", ignore_cleanup_errors=True) as folder:
        job = ScriptJob(str(Path(script).resolve()), arguments, framework, np, steps, folder, os.getcwd())
        job.save()
        say(f"{Path(script).name}: once on {np} processes, twice on one, about {steps} updates each")
        seen = _gather(job, chosen, report)
        if report.error is None:
            report.updates = seen.updates
            report.checks += judge(seen)
        report.exemptions += _exemptions(seen)
    return report


def framework_of(script: str) -> str:
    """Return the framework whose verbs a script imports, itself or by a module that lies beside it.

    Raises:
        RecipeError: There is no such file, it is not Python, or it imports no verbs, or those of two frameworks.
    """
    path = Path(script)
    if not path.is_file():
        raise RecipeError(f"script {script!r} does not exist")
    found = sorted(set(_frameworks(path, set())))
    if len(found) == 1:
        return found[0]
    if found:
        raise RecipeError(f"{script} imports the verbs of {' and '.join(found)}; a script is verified in one framework")
    raise RecipeError(
        f"{script} does not use hvdkit: it imports none of hvdkit.torch, hvdkit.tf and hvdkit.keras; to verify a "
        "recipe, give --framework"
    )


def _frameworks(path: Path, known: set[Path]) -> Iterator[str]:
    known.add(path)
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise RecipeError(f"{path}{line} is not Python: {error}") from None
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            package, _, rest = name.partition(".")
            beside = path.parent / f"{package}.py"
            if package == "hvdkit" and rest.partition(".")[0] in FRAMEWORKS:
                yield rest.partition(".")[0]
            elif beside.is_file() and beside not in known:
                yield from _frameworks(beside, known)


def _gather(job: ScriptJob, engine: str, report: Report) -> Seen:
    problem = run_ranks(job, engine, RANKS)
    logs = [job.log(RANKS, rank) for rank in range(job.processes)]
    seen = Seen(job, [log for log in logs if log is not None])
    if problem:
        _blame(job, seen, problem, report)
        return seen
    if not seen.updates:
        raise RecipeError(f"{job.script} never trains: no optimizer makes a step with these arguments")
    seen.no_whole = _obstacle(seen)
    for run in (SINGLE, DOUBLED) if seen.no_whole else (WHOLE, NUDGED):
        if not seen.ranks[0].batches:
            break
        failed = run_alone(job, run)
        log = job.log(run)
        if failed:
            seen.errors[run] = f"the run on one process ends with an error: {failed}"
        elif log is not None:
            setattr(seen, run, log)
    return seen


def _blame(job: ScriptJob, seen: Seen, problem: str, report: Report) -> None:
    """Say what a run on all ranks has failed by: the script itself, a verb, or something else."""
    if run_alone(job, PLAIN):
        log = job.log(PLAIN)
        words = log.facts.get("error", problem) if log is not None else problem
        raise RecipeError(f"{Path(job.script).name} ends with an error on one process: {words}")
    seen.failed = next((log.facts["failed"] for log in seen.ranks if "failed" in log.facts), None)
    if seen.failed is None or not (len(seen.ranks) == job.processes or is_cause(seen.failed[1], problem)):
        report.error = problem


def is_cause(said: str, problem: str) -> bool:
    """Say whether what a rank said is how the job ended; ranks that it has ended may leave no log.

    Args:
        said: The rank's error.
        problem: The last line of the job, which may be cut.
    """
    begin = " ".join(said.split())[:_COMPARED]
    return bool(begin) and begin in problem


def _obstacle(seen: Seen) -> str:
    """Return why one process on whole batches could not be compared."""
    if not seen.ranks[0].batches:
        return "the batches do not come from hk.shard"
    if seen.fact("random"):
        return "training draws random numbers"
    if seen.fact("statistics") and not seen.fact("synchronised"):
        return "BatchNorm's statistics are each rank's own"
    return ""


def _exemptions(seen: Seen) -> list[str]:
    found = (
        [f"not checked: the weights of one process on whole global batches: {seen.no_whole}"] if seen.no_whole else []
    )
    if seen.fact("dropout"):
        found.append("dropout: ranks draw masks of their own; verified with dropout switched off")
    if seen.fact("ended"):
        found.append("the script was ended in its training; what follows it was not seen")
    return found
