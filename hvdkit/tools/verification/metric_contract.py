"""The contract of step 8: losses and metrics that are those of all samples, on every rank."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from hvdkit.tools.verification.outcomes import NOT_REPLAYED
from hvdkit.tools.verification.report import Check
from hvdkit.tools.verification.rounding import ALONE, TERMS, nearest
from hvdkit.tools.verification.runs import Runs
from hvdkit.tools.verification.storage import Log

_DOUBLE_SUMS = 1e-12


def metrics(seen: Runs) -> Iterator[Check]:
    """Metrics are the same on every rank, and those of one process over all samples."""
    claim = "the same averaged metrics on every rank"
    records = [log.facts["epochs"] for log in seen.ranks]
    for rank, other in enumerate(records[1:], 1):
        for epoch, (ours, theirs) in enumerate(zip(records[0], other, strict=False), 1):
            for name in [*ours, *theirs]:
                if name not in ours or not _same(ours[name], theirs.get(name)):
                    found = f"epoch {epoch}: {name} is {theirs.get(name)} on rank {rank} and {ours.get(name)} on rank 0"
                    if "average" in seen.known["off"]:
                        found += "; Recipe.average is None: give hvdkit.Average()"
                    yield Check("average", claim, False, found, None, 0.0, name, epoch * seen.layout.steps)
                    return
    lengths = [len(record) for record in records]
    if set(lengths) != {seen.layout.epochs}:
        found = f"{lengths} epochs on the ranks, {seen.layout.epochs} are due"
        yield Check("average", claim, False, found, None, 0.0, "epochs")
        return
    yield Check("average", claim, True, f"{len(records[0])} epochs", 0.0, 0.0)
    yield from _over_all_samples(seen)


def _same(ours: float, theirs: float | None) -> bool:
    return ours == theirs or (theirs is not None and np.isnan(ours) and np.isnan(theirs))


def _over_all_samples(seen: Runs) -> Iterator[Check]:
    if seen.hidden:
        yield Check("average", "losses and metrics over all samples", None, NOT_REPLAYED)
        return
    who, due = ("one process", seen.whole) if seen.known["synchronised"] else ("the twin", seen.twin)
    claim = f"losses and metrics over all samples, as {who} has them"
    found = {name for record in seen.ranks[0].facts["epochs"] for name in record}
    there = list(dict.fromkeys(name for record in due.facts["epochs"] for name in record))
    uneven = {name for name in there if not _is_mean(seen, name)}
    names = [name for name in there if name in found and name not in uneven]
    checks = [_metric(seen, due, name, who, claim) for name in names]
    failed = next((check for check in checks if check.passed is False), None)
    if failed is not None:
        yield failed
    else:
        furthest = max(checks, key=lambda check: (check.size or 0.0) / (check.limit or 1.0))
        words = ", ".join(f"{name} within {check.size or 0.0:.0e}" for name, check in zip(names, checks, strict=True))
        yield Check("average", claim, True, words, furthest.size, furthest.limit, source=furthest.source)
    for name in sorted(uneven & found):
        reason = "a function that is no mean over the samples of a batch has no value over all of them"
        yield Check("average", f"over all samples: {name}", None, reason)
    left_out = sorted(found.symmetric_difference(there) - {*_COUNTS})
    if left_out:
        reason = "measured by the ranks or by one process alone; validation data of your own are not replayed"
        yield Check("average", f"over all samples: {', '.join(left_out)}", None, reason)


_COUNTS = ("skipped_steps", "clipped_gradients", "lost_gradients")


def _is_mean(seen: Runs, name: str) -> bool:
    """Say whether a metric that is a function gives the mean over samples, as far as batches and their parts show."""
    plain = name.removeprefix("val_")
    pairs = [
        (probe["joined"][plain], probe["parts"][plain], probe["scale"][plain])
        for probe in seen.probes
        if plain != "loss" and plain in probe["joined"]
    ]
    return all(abs(joined - parts) <= 1e-4 * scale or joined == parts for joined, parts, scale in pairs)


def _metric(seen: Runs, due: Log, name: str, who: str, claim: str) -> Check:
    """Compare one metric in every epoch: by whole samples where it is a share of them, else within rounding."""
    # libraries compute metrics in float32
    floor = max(TERMS * float(np.finfo(seen.layout.dtype if name.endswith("loss") else "float32").eps), _DOUBLE_SUMS)
    values = [record[name] for record in due.facts["epochs"]]
    found = [record.get(name, np.nan) for record in seen.ranks[0].facts["epochs"]]
    twins = [
        abs(rounded.get(name, np.nan) - twin.get(name, np.nan))
        for twin, rounded in zip(seen.twin.facts["epochs"], seen.rounded.facts["epochs"], strict=False)
    ]
    scale = max([abs(value) for value in values if np.isfinite(value)] or [1.0]) or 1.0
    exact = seen.exact and name in ("loss", "accuracy")
    shares = _is_share(seen, name, values)
    moves = itertools.chain(twins, itertools.repeat(0.0))
    spread = furthest = bound = 0.0
    source = "sums in double precision"
    for epoch, (ours, there, moved) in enumerate(zip(found, values, moves, strict=False), 1):
        size = abs(ours - there) / scale
        spread = max(spread, moved)
        samples = _samples(seen, name, epoch)
        limit = _DOUBLE_SUMS if exact else ALONE * spread / scale + floor
        source = source if exact else f"{ALONE} x the twin with weights rounded otherwise, and {TERMS} eps of sums"
        whole = abs(ours - there) * samples
        if shares and not exact and abs(whole - round(whole)) <= 1e-6 * samples:
            limit = (spread * samples + 1.5) / samples / scale
            source = "one sample more than the twin with weights rounded otherwise"
        if not (size <= limit or (np.isnan(ours) and np.isnan(there))):
            words = f"epoch {epoch}: {name} is {ours:.7g}, {who} has {there:.7g}"
            return Check("average", claim, False, words, size, limit, name, epoch * seen.layout.steps, source)
        furthest, bound = nearest((furthest, bound), (size, limit))
    return Check("average", claim, True, name, furthest, bound, source=source)


def _is_share(seen: Runs, name: str, values: list[float]) -> bool:
    """Say whether a metric is a share of samples in every epoch, as an accuracy is."""
    counts = [value * _samples(seen, name, epoch) for epoch, value in enumerate(values, 1)]
    return all(np.isfinite(count) and abs(count - round(count)) <= 1e-6 * max(1.0, abs(count)) for count in counts)


def _samples(seen: Runs, name: str, epoch: int) -> int:
    if name.startswith("val_"):
        return int(seen.twin.facts["validation"])
    return sum(micro.count for log in seen.ranks for micro in log.micros if micro.epoch == epoch - 1)
