"""``hvdkit.verify``: starts the runs, gathers what they leave behind, and judges it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hvdkit.engines.choice import choose_to_start
from hvdkit.errors import DataError, LaunchError, RecipeError
from hvdkit.process.environment import library_of
from hvdkit.recipe.declaration import Recipe
from hvdkit.tools.launch.function import run
from hvdkit.tools.verification import contracts, jobs, outcomes
from hvdkit.tools.verification.exemptions import exemptions, left_out
from hvdkit.tools.verification.jobs import Job
from hvdkit.tools.verification.layout import check_dtype
from hvdkit.tools.verification.metric_contract import metrics
from hvdkit.tools.verification.preflight import check_framework
from hvdkit.tools.verification.random_contract import random_contract
from hvdkit.tools.verification.randomness import FROZEN, HIDDEN, KEPT, REPLAYED
from hvdkit.tools.verification.recipe_contract import recipe_contract
from hvdkit.tools.verification.replay_job import replay
from hvdkit.tools.verification.report import Check, Report
from hvdkit.tools.verification.resume_job import resume
from hvdkit.tools.verification.resuming import plan_resumptions
from hvdkit.tools.verification.resumption import checkpoints
from hvdkit.tools.verification.runs import Runs
from hvdkit.tools.verification.shard_contract import shard_contract
from hvdkit.tools.verification.source import Source
from hvdkit.tools.verification.statistics_contract import statistics_contract
from hvdkit.tools.verification.storage import Log

Say = Callable[[str], None]


def verify(
    recipe: Recipe | str,
    framework: str,
    np: int = 2,
    steps: int = 20,
    engine: str = "auto",
    dtype: str = "float32",
    say: Say | None = None,
) -> Report:
    """Check that N processes compute what one would, for a recipe.

    The recipe runs on N processes, and on one that replays their batches: as their twin, which sums the micro-batches
    in rank order, and on whole global batches. Data are cut so that two epochs or more fit into ``steps`` updates.

    Args:
        recipe: A recipe, or ``FILE.py:NAME`` for one that every process loads itself.
        framework: ``torch``, ``tf`` or ``keras``.
        np: Processes, at least 2.
        steps: Updates, about; a whole number of epochs is done.
        engine: ``auto``, ``horovod``, ``torch`` or ``mpi``.
        dtype: ``float32``, or ``float64`` for narrower bands.
        say: Is told what goes on, one line at a time.

    Returns:
        What was found; ``report.passed`` says whether everything holds.

    Raises:
        RecipeError: An argument is wrong, the framework is not installed, there is no such recipe, or it does not run
            on one process.
        EngineError: The engine is unknown, not installed, or does not serve the framework.
        DataError: The disk cannot hold the weights of all updates.
    """
    check_framework(framework)
    if np < 2 or steps < 1:
        raise RecipeError(f"verify got np={np} and steps={steps}; np must be at least 2 and steps at least 1")
    check_dtype(dtype)
    source = Source.parse(recipe) if isinstance(recipe, str) else Source(recipe=recipe)
    chosen = choose_to_start(engine, np, library_of(framework)).engine
    report = Report(str(source), framework, chosen, np, 0, dtype)
    with tempfile.TemporaryDirectory(prefix="hvdkit-verify-") as folder:
        job = Job(source, framework, chosen, folder)
        try:
            seen = _gather(job, np, steps, dtype, say or _silent)
        except LaunchError as error:
            report.error = str(error)
            return report
        report.updates = seen.layout.updates
        report.exemptions = exemptions(seen)
        report.checks = judge(seen)
    return report


def _silent(line: str) -> None:
    del line


def judge(seen: Runs) -> list[Check]:
    """Check every step's contract, in the order in which one spoils the next."""
    return [
        contracts.init_contract(seen),
        contracts.pin_contract(seen),
        *recipe_contract(seen),
        *contracts.broadcast_contract(seen),
        *random_contract(seen),
        *shard_contract(seen),
        contracts.rate_contract(seen),
        *statistics_contract(seen),
        outcomes.agreement(seen),
        *outcomes.against_twin(seen),
        *metrics(seen),
        *checkpoints(seen),
        *left_out(seen),
    ]


def _gather(job: Job, size: int, steps: int, dtype: str, say: Say) -> Runs:
    """Run everything, each run in separate processes."""
    try:
        known = _alone(jobs.survey, job, size, steps, dtype)
    except LaunchError as error:
        raise RecipeError(f"the recipe does not run on one process: {str(error).removeprefix('rank 0: ')}") from None
    layout = known["layout"]
    _estimate(known, size, job.folder, say)
    job = replace(job, layout=layout, randomness=known["randomness"])
    say(f"hvdkit: {size} processes, {layout.updates} updates in {layout.epochs} epochs, engine {job.engine}")
    run(jobs.train, (job,), np=size, engine=job.engine, verbose=False)
    ranks = _logs(job, "ranks", size)
    threads = ranks[0].facts["threads"]
    say("hvdkit: one process on the same batches, as their twin and on whole global batches")
    _alone(replay, job, threads)
    layers = known["layers"]
    seen = Runs(
        framework=job.framework,
        layout=layout,
        known=known,
        ranks=ranks,
        twin=Log.load(f"{job.folder}/twin"),
        rounded=Log.load(f"{job.folder}/rounded"),
        whole=Log.load(f"{job.folder}/whole"),
        resumed=[],
        local_statistics=[
            name for name, kind in layers if "BatchNorm" in kind and "Sync" not in kind and not known["synchronised"]
        ],
        random=known["randomness"] in (KEPT, HIDDEN),
        dropout=known["randomness"] in (REPLAYED, FROZEN),
        quiet=Log.load(f"{job.folder}/quiet") if known["randomness"] == REPLAYED else None,
    )
    if any(check.passed is False for check in judge(seen)):
        return seen
    plans = list(plan_resumptions(job.folder, layout, known["stop_at"], ranks[0]))
    say(f"hvdkit: the processes once more, from {', '.join(plan.words for plan in plans)}")
    # metrics that keep a state would bring it along from one run to the next
    together = [[plan] for plan in plans] if known["metrics_with_states"] else [plans]
    try:
        for some in together:
            run(resume, (job, some), np=size, engine=job.engine, verbose=False)
    except LaunchError as error:
        return replace(seen, unresumed=str(error))
    return replace(seen, resumed=[(plan, _logs(job, plan.name, size)) for plan in plans])


def _alone(function: Any, *args: Any) -> Any:
    return run(function, args, np=1, engine="serial", verbose=False)[0]


def _logs(job: Job, name: str, size: int) -> list[Log]:
    return [Log.load(f"{job.folder}/{name}-{rank}") for rank in range(size)]


def _estimate(known: dict[str, Any], size: int, folder: str, say: Say) -> None:
    """Say what the runs will cost, from two steps on one process."""
    start, *steps = known["seconds"]
    updates = known["layout"].updates
    # ranks, twice the twin and the whole batches compute all micro-batches, runs that go on three parts of two
    seconds = 4 * start + 5.5 * size * updates * min(steps) + 5 * max(steps)
    disk = updates * ((2.7 * size + 3) * known["state_bytes"] + 2.7 * known["update_bytes"])
    memory = known["memory"] * size
    say(
        f"hvdkit: {known['weights']:,} weights; about {seconds:.0f} s, {_size(memory)} of memory, "
        f"{_size(disk)} of disk in {folder}"
    )
    free = shutil.disk_usage(folder).free
    if disk > free:
        raise DataError(f"verify needs {_size(disk)} in {folder}, where {_size(free)} are free; take fewer --steps")


def _size(number: float) -> str:
    return f"{number / 1e9:.1f} GB" if number >= 1e9 else f"{number / 1e6:.1f} MB"
