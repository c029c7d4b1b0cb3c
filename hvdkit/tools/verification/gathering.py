"""Starts the runs, side by side where they do not stand in each other's way, and gathers what they leave behind.

Most of the time of a short run goes into starting processes and importing frameworks. So ranks are started while one
process still looks at the recipe, and wait for what it finds; and what they leave is replayed while other processes go
on from their checkpoints. No process does two of these, since what one leaves in modules would reach the other.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from hvdkit.errors import LaunchError, RecipeError
from hvdkit.tools.launch.function import Running
from hvdkit.tools.verification import jobs
from hvdkit.tools.verification.estimate import Say, estimate
from hvdkit.tools.verification.jobs import Job
from hvdkit.tools.verification.judge import judge
from hvdkit.tools.verification.orders import give
from hvdkit.tools.verification.randomness import FROZEN, HIDDEN, KEPT, REPLAYED
from hvdkit.tools.verification.replay_job import replay
from hvdkit.tools.verification.replays import local_statistics, replays
from hvdkit.tools.verification.resume_job import resume
from hvdkit.tools.verification.resuming import plan_resumptions
from hvdkit.tools.verification.runs import Runs
from hvdkit.tools.verification.storage import Log

_LONG = 10.0
"""Seconds that pay for one process more."""


def gather(job: Job, size: int, steps: int, dtype: str, say: Say) -> Runs:
    """Run everything.

    Raises:
        LaunchError: The ranks fail, or what replays them.
        RecipeError: The recipe does not run on one process.
        DataError: The disk is too small.
    """
    with ExitStack() as stack:

        def start(function: Any, *args: Any, np: int = 1) -> Running:
            return stack.enter_context(Running(function, args, np=np, engine="serial" if np == 1 else job.engine))

        try:
            survey = start(jobs.survey, job, size, steps, dtype)
            ranks = start(jobs.train, job, np=size)
            known = survey.results()[0]
        except LaunchError as error:
            reason = str(error).removeprefix("rank 0: ")
            raise RecipeError(f"the recipe does not run on one process: {reason}") from None
        layout = known["layout"]
        estimate(known, job.framework, job.folder, say)
        job = replace(job, layout=layout, randomness=known["randomness"], arrays=known["arrays"])
        say(f"hvdkit: {size} processes, {layout.updates} updates in {layout.epochs} epochs, engine {job.engine}")
        give(job.folder, "train", (job.layout, job.randomness))
        ranks.results()
        logs = _logs(job, "ranks", size)
        say("hvdkit: one process on the same batches, as their twin and on whole global batches")
        plans = list(plan_resumptions(job.folder, layout, known["stop_at"], logs[0]))
        # metrics that keep a state would bring it along from one run to the next, and generators their seeds
        apart = known["metrics_with_states"] or known["read"]
        first, *others = [[plan] for plan in plans] if apart else [plans]
        # a GPU may not have the memory for both
        resumed = start(resume, job, first, np=size) if known["on_cpu"] else None
        made, threads = replays(job.framework, layout, known), logs[0].facts["threads"]
        for running in [start(replay, job, threads, part) for part in _share_out(made, known, size)]:
            running.results()
        seen = _runs(job, known, logs)
        if any(check.passed is False for check in judge(seen)):
            return seen
        say(f"hvdkit: the processes once more, from {', '.join(plan.words for plan in plans)}")
        try:
            (resumed or start(resume, job, first, np=size)).results()
            for some in others:
                start(resume, job, some, np=size).results()
        except LaunchError as error:
            return replace(seen, unresumed=str(error))
        return replace(seen, resumed=[(plan, _logs(job, plan.name, size)) for plan in plans])


def _share_out(made: dict[str, int], known: dict[str, Any], size: int) -> list[dict[str, int]]:
    """Share out what is replayed: where it takes long, a second process makes all but the twin."""
    _, *steps = known["seconds"]
    if not known["on_cpu"] or min(steps) * size * known["layout"].updates < _LONG:
        return [made]
    return [{"twin": made["twin"]}, {name: updates for name, updates in made.items() if name != "twin"}]


def _runs(job: Job, known: dict[str, Any], ranks: list[Log]) -> Runs:
    assert job.layout is not None
    made = replays(job.framework, job.layout, known)
    return Runs(
        framework=job.framework,
        layout=job.layout,
        known=known,
        ranks=ranks,
        twin=Log.load(f"{job.folder}/twin"),
        rounded=Log.load(f"{job.folder}/rounded"),
        whole=Log.load(f"{job.folder}/whole"),
        resumed=[],
        local_statistics=local_statistics(known),
        random=known["randomness"] in (KEPT, HIDDEN),
        dropout=known["randomness"] in (REPLAYED, FROZEN),
        quiet=Log.load(f"{job.folder}/quiet") if "quiet" in made else None,
    )


def _logs(job: Job, name: str, size: int) -> list[Log]:
    return [Log.load(f"{job.folder}/{name}-{rank}") for rank in range(size)]
