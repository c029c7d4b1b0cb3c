"""``hvdkit.verify``: has the runs made, and judges what they leave behind."""

from __future__ import annotations

import tempfile

from hvdkit.engines.choice import choose_to_start
from hvdkit.errors import LaunchError, RecipeError
from hvdkit.process.environment import library_of
from hvdkit.recipe.declaration import Recipe
from hvdkit.tools.verification.estimate import Say
from hvdkit.tools.verification.exemptions import exemptions
from hvdkit.tools.verification.gathering import gather
from hvdkit.tools.verification.jobs import Job
from hvdkit.tools.verification.judge import judge
from hvdkit.tools.verification.layout import check_dtype
from hvdkit.tools.verification.preflight import check_framework
from hvdkit.tools.verification.report import Report
from hvdkit.tools.verification.source import Source


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
    in rank order, and on whole global batches. Data are cut so that three epochs or more fit into ``steps`` updates.

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
            seen = gather(job, np, steps, dtype, say or _silent)
        except LaunchError as error:
            report.error = str(error)
            return report
        report.updates = seen.layout.updates
        report.exemptions = exemptions(seen)
        report.checks = judge(seen)
    return report


def _silent(line: str) -> None:
    del line
