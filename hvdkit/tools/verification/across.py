"""``hvdkit verify --across``: does one recipe train alike in several frameworks?"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hvdkit.errors import LaunchError, RecipeError
from hvdkit.recipe.declaration import Recipe
from hvdkit.tools.launch.function import run
from hvdkit.tools.verification.arguments import Part, differently_drawn, differing, not_paired
from hvdkit.tools.verification.distances import distance, first_apart
from hvdkit.tools.verification.jobs import Job
from hvdkit.tools.verification.layout import check_dtype
from hvdkit.tools.verification.preflight import check_framework
from hvdkit.tools.verification.report import Check, Report
from hvdkit.tools.verification.source import Source
from hvdkit.tools.verification.storage import Log
from hvdkit.tools.verification.tracing import EPS, trace, trace_folder

Difference = tuple[float, str]
"""The size of a difference, and what differs in words."""

_RATE_LIMIT = 1e-6
_SHOWN = 10
# of losses and weights; Adam takes steps of full size from gradients near zero, where frameworks round in other ways
_LIMITS, _NORMALISED_LIMITS, _ADAM_LIMITS = (1e-4, 1e-4), (1e-3, 1e-3), (5e-3, 3e-2)


@dataclass
class Comparison(Report):
    """The outcome of a comparison of frameworks."""

    def title(self) -> str:
        """Return what was compared."""
        return f"{self.recipe}: {self.framework}, one process each, {self.updates} updates, {self.dtype}"

    def success(self) -> str:
        """Return the verdict if everything holds."""
        return f"{self.framework} train alike"


def compare(
    recipe: Recipe | str,
    frameworks: Sequence[str],
    steps: int = 20,
    dtype: str = "float32",
    say: Callable[[str], None] | None = None,
) -> Comparison:
    """Check that a recipe trains alike in several frameworks, each in a separate process.

    All start from the weights that the model has in the first one.

    Args:
        recipe: A recipe, or ``FILE.py:NAME`` for one that every process loads itself.
        frameworks: Two or more of ``torch``, ``tf`` and ``keras``.
        steps: Updates, about; a whole number of epochs is done.
        dtype: ``float32`` or ``float64``.
        say: Is told what goes on, one line at a time.

    Returns:
        What was found; ``passed`` says whether everything holds.

    Raises:
        RecipeError: An argument is wrong, or the recipe cannot run in one of the frameworks, or its models have no
            weights that could be carried from one to another.
    """
    if len(set(frameworks)) != len(frameworks) or len(frameworks) < 2:
        raise RecipeError(f"--across got {','.join(frameworks)!r}; give two or three different frameworks")
    if steps < 1:
        raise RecipeError(f"verify got steps={steps}; it must be at least 1")
    check_dtype(dtype)
    for framework in frameworks:
        check_framework(framework)
    source = Source.parse(recipe) if isinstance(recipe, str) else Source(recipe=recipe)
    with tempfile.TemporaryDirectory(prefix="hvdkit-verify-") as folder:
        jobs = [Job(source, framework, "serial", folder) for framework in frameworks]
        logs: dict[str, Log] = {}
        for job in jobs:
            _say(say, f"hvdkit: {job.framework}, one process")
            logs[job.framework] = _trace(job, steps, dtype, trace_folder(jobs[0], False) if logs else "", False)
        _say(say, f"hvdkit: {frameworks[0]} once more, with the samples of each batch in another order")
        turned = _trace(jobs[0], steps, dtype, "", True)
        updates = min(len(log.facts["losses"]) for log in logs.values())
        report = Comparison(str(source), ", ".join(frameworks), "serial", 1, updates, dtype)
        report.checks = _judge(logs, turned)
        report.exemptions = _exemptions(list(logs.values()))
    return report


def _say(say: Callable[[str], None] | None, line: str) -> None:
    if say is not None:
        say(line)


def _trace(job: Job, steps: int, dtype: str, start: str, turned: bool) -> Log:
    try:
        run(trace, (job, steps, dtype, start, turned), np=1, engine="serial", verbose=False)
    except LaunchError as error:
        raise RecipeError(f"{job.framework}: {str(error).removeprefix('rank 0: ')}") from None
    return Log.load(trace_folder(job, turned))


def _judge(logs: dict[str, Log], turned: Log) -> list[Check]:
    first = next(iter(logs.values()))
    normalised, adam = _normalised(logs.values()), any(log.facts["adam"] for log in logs.values())
    limits = _ADAM_LIMITS if adam else _NORMALISED_LIMITS if normalised else _LIMITS
    loss = max(limits[0], 10 * _losses(first, turned, math.inf)[0])
    weight = max(limits[1], 10 * _weights_at(-1)(first, turned, 0.0)[0])
    checks = [
        _all("start", "the same initial weights", logs, 0.0, _weights_at(0)),
        _all("samples", "the same samples at every update, in the same order", logs, 0.0, _samples),
        _all("rate", "the same learning rates", logs, _RATE_LIMIT, _rates),
        _all("arguments", "layers and optimizers made with the same values", logs, 0.0, _arguments),
        _all("initialisers", "initial weights drawn alike", logs, 0.0, _initialisers),
        _all("loss", "the same loss at every update", logs, loss, _losses),
        _all("weights", "the same weights at the end", logs, weight, _weights_at(-1)),
    ]
    if normalised:
        words = "not made: frameworks keep BatchNorm's running variance in different ways"
        return [*checks, Check("evaluation", "the same validation loss", None, words)]
    return [*checks, _all("evaluation", "the same validation loss", logs, loss, _evaluation)]


def _normalised(logs: Iterable[Log]) -> bool:
    return any("BatchNorm" in kind for log in logs for kind in log.facts["layers"])


def _exemptions(logs: list[Log]) -> list[str]:
    found = []
    if any(log.facts["own_eps"] for log in logs):
        found.append(f"Adam's eps: Keras adds it before the bias correction, torch after it; verified with {EPS:g}")
    if any("Dropout" in kind for log in logs for kind in log.facts["layers"]):
        found.append("dropout: frameworks draw masks of their own; verified with dropout switched off")
    first, *others = logs
    for other in others:
        apart = not_paired(_framework(first), _parts(first), _framework(other), _parts(other))
        if apart:
            found.append(f"arguments of layers of which models have different numbers: {'; '.join(apart)}")
    return found


def _all(
    step: str, claim: str, logs: dict[str, Log], limit: float, measure: Callable[[Log, Log, float], Difference]
) -> Check:
    """Compare every framework with the first."""
    (first, reference), *others = logs.items()
    sizes = {}
    for name, log in others:
        sizes[name], words = measure(reference, log, limit)
        if not sizes[name] <= limit:
            return Check(step, claim, False, f"{name} against {first}: {words}", sizes[name], limit)
    found = ", ".join(f"{name}: {f'within {size:.0e}' if size else 'equal'}" for name, size in sizes.items())
    return Check(step, claim, True, found, max(sizes.values()), limit)


def _weights_at(position: int) -> Callable[[Log, Log, float], Difference]:
    def measure(first: Log, other: Log, limit: float) -> Difference:
        ours, theirs = (log.snapshots[position].arrays("parameters") for log in (other, first))
        start = {} if position == 0 else first.snapshots[0].arrays("parameters")
        size = distance(ours, theirs, start)
        return size, f"distance {size:.1e} (limit {limit:.0e}), first in {first_apart(ours, theirs, start, limit)}"

    return measure


def _samples(first: Log, other: Log, _limit: float) -> Difference:
    pairs = list(zip(first.facts["samples"], other.facts["samples"], strict=False))
    for update, (theirs, ours) in enumerate(pairs, 1):
        if theirs != ours:
            return 1.0, f"update {update}: {len(ours)} samples are not the {len(theirs)} that are due"
    missing = abs(len(first.facts["samples"]) - len(other.facts["samples"]))
    return float(missing), f"{len(other.facts['samples'])} updates instead of {len(first.facts['samples'])}"


def _arguments(first: Log, other: Log, _limit: float) -> Difference:
    found = differing(_framework(first), _parts(first), _framework(other), _parts(other))
    return float(len(found)), _listed(found)


def _initialisers(first: Log, other: Log, _limit: float) -> Difference:
    (theirs, ours) = (log.start("drawn") for log in (first, other))
    found = differently_drawn(_framework(first), theirs, _framework(other), ours)
    return float(len(found)), _listed(found)


def _listed(found: list[str]) -> str:
    more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return "; ".join(found[:_SHOWN]) + more


def _parts(log: Log) -> list[Part]:
    return [Part(**entry) for entry in log.facts["parts"]]


def _framework(log: Log) -> str:
    return str(log.facts["framework"])


def _rates(first: Log, other: Log, limit: float) -> Difference:
    due, found = ([snapshot.rate for snapshot in log.snapshots[1:]] for log in (first, other))
    return _furthest(due, found, limit)


def _losses(first: Log, other: Log, limit: float) -> Difference:
    size, words = _furthest(first.facts["losses"], other.facts["losses"], limit, _floor(first))
    if words.startswith("update 1:"):
        words += ": with the same weights and samples the models or losses are not the same function"
    return size, words


def _floor(log: Log) -> float:
    """Return what small losses count as: once samples are learnt by heart, their loss is near 0 and all noise."""
    return 0.1 * abs(float(log.facts["losses"][0]))


def _furthest(due: list[float], found: list[float], limit: float, floor: float = 1e-12) -> Difference:
    """Return the first relative difference above the limit, else the largest."""
    largest = 0.0
    for update, (theirs, ours) in enumerate(zip(due, found, strict=False), 1):
        size = abs(ours - theirs) / max(abs(theirs), floor)
        if not size <= limit:
            return (size if math.isfinite(size) else math.inf), f"update {update}: {ours:.7g} instead of {theirs:.7g}"
        largest = max(largest, size)
    return largest, ""


def _evaluation(first: Log, other: Log, limit: float) -> Difference:
    due: dict[str, Any] = first.facts["evaluation"]
    found: dict[str, Any] = other.facts["evaluation"]
    size, words = _furthest([due.get("loss", 0.0)], [found.get("loss", 0.0)], limit, _floor(first))
    return size, words.removeprefix("update 1: ")
