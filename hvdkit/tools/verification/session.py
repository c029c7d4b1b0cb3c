"""``hvdkit.verify``: starts the runs, gathers what they leave behind, and judges it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from hvdkit.engines.choice import choose_to_start
from hvdkit.errors import DataError, LaunchError, RecipeError
from hvdkit.process.environment import library_of
from hvdkit.recipe.declaration import Recipe
from hvdkit.tools.launch.function import run
from hvdkit.tools.verification import contracts, jobs, outcomes
from hvdkit.tools.verification.jobs import Job
from hvdkit.tools.verification.layout import check_dtype
from hvdkit.tools.verification.preflight import check_framework
from hvdkit.tools.verification.recipe_contract import recipe_contract
from hvdkit.tools.verification.report import Check, Report
from hvdkit.tools.verification.runs import Runs
from hvdkit.tools.verification.source import Source
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
        report.exemptions = _exemptions(seen)
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
        *contracts.shard_contract(seen),
        contracts.rate_contract(seen),
        outcomes.agreement(seen),
        *outcomes.against_twin(seen),
        *outcomes.against_whole(seen),
        *outcomes.metrics(seen),
        outcomes.checkpoints(seen),
    ]


def _gather(job: Job, size: int, steps: int, dtype: str, say: Say) -> Runs:
    """Run everything, each run in separate processes."""
    try:
        known = _alone(jobs.survey, job, size, steps, dtype)
    except LaunchError as error:
        raise RecipeError(f"the recipe does not run on one process: {str(error).removeprefix('rank 0: ')}") from None
    layout = known["layout"]
    _estimate(known, size, job.folder, say)
    job = replace(job, layout=layout)
    say(f"hvdkit: {size} processes, {layout.updates} updates in {layout.epochs} epochs, engine {job.engine}")
    _ranks(job, "ranks", size)
    ranks = _logs(job, "ranks", size)
    threads = ranks[0].facts["threads"]
    say("hvdkit: one process on the same batches, as their twin and on whole global batches")
    _alone(jobs.replay, job, threads)
    layers = known["layers"]
    known["kept"] = layout.samples or layout.updates * known["global_batch"]
    seen = Runs(
        framework=job.framework,
        layout=layout,
        known=known,
        ranks=ranks,
        twin=Log.load(f"{job.folder}/twin"),
        whole=Log.load(f"{job.folder}/whole"),
        resumed=[],
        local_statistics=[
            name for name, kind in layers if "BatchNorm" in kind and "Sync" not in kind and not known["synchronised"]
        ],
        random=known["random"],
        dropout=any("Dropout" in kind for _, kind in layers),
    )
    if any(check.passed is False for check in judge(seen)):
        return seen
    say("hvdkit: the processes once more, from the checkpoint of the first epoch")
    _keep_first_checkpoint(job.folder)
    _ranks(job, "resumed", size)
    return replace(seen, resumed=_logs(job, "resumed", size))


def _alone(function: Any, *args: Any) -> Any:
    return run(function, args, np=1, engine="serial", verbose=False)[0]


def _ranks(job: Job, name: str, size: int) -> None:
    run(jobs.train, (job, name), np=size, engine=job.engine, verbose=False)


def _logs(job: Job, name: str, size: int) -> list[Log]:
    return [Log.load(f"{job.folder}/{name}-{rank}") for rank in range(size)]


def _keep_first_checkpoint(folder: str) -> None:
    for path in sorted(Path(folder, "checkpoints").iterdir())[1:]:
        path.unlink()


def _estimate(known: dict[str, Any], size: int, folder: str, say: Say) -> None:
    """Say what the runs will cost, from two steps on one process."""
    start, *steps = known["seconds"]
    updates = known["layout"].updates
    # ranks (and half of them again), twin and whole batches each compute all micro-batches
    seconds = 4 * start + 3.5 * size * updates * min(steps) + 4 * max(steps)
    disk = updates * ((2 * size + 2) * known["state_bytes"] + 2 * known["update_bytes"])
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


def _exemptions(seen: Runs) -> list[str]:
    found = []
    if seen.known["precision"] != "fp32":
        found.append(
            f"precision {seen.known['precision']}: verified in full precision, since rounding would hide faults"
        )
    if seen.known["compression"] != "none":
        found.append(f"compression {seen.known['compression']}: verified without: rounding hides faults")
    if seen.dropout:
        found.append("dropout: ranks draw masks of their own, as they should; verified with dropout switched off")
    if seen.local_statistics:
        found.append(
            f"BatchNorm ({', '.join(seen.local_statistics[:3])}): each rank normalises by its own batch, as on N "
            "machines; compared with the twin, which keeps statistics for each rank, not with the global batch"
        )
    if seen.random:
        found.append(
            "random layers or functions: ranks draw numbers of their own; compared with the twin where it can repeat "
            "them, not with the global batch"
        )
    if "samples" not in seen.twin.facts:
        found.append("a data set of your own: the batches that ranks took are replayed, but not checked for gaps")
    return found
