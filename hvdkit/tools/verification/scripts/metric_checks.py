"""The contract of step 8: what the verbs return, and what rank 0 shows."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from hvdkit.tools.verification.report import Check
from hvdkit.tools.verification.scripts.lines import numbers, template
from hvdkit.tools.verification.scripts.seen import Seen

_AVERAGE_LIMIT = 1e-12
_RELATIVE = 1e-5
_TIMES = 10
_TIME = re.compile(
    r"\b(time|took|elapsed|speed|throughput|seconds?|minutes?|eta)\b|#\s*(s|ms|sec|secs|min|h)\b|/\s*s\b", re.I
)


def averages(seen: Seen) -> Iterator[Check]:
    """Compare what ``average`` returned with the mean of what ranks gave it."""
    claim = "average returns the mean over ranks, by counts, on every rank"
    calls = [log.averages for log in seen.ranks]
    if len({len(each) for each in calls}) > 1:
        yield Check("average", claim, False, f"ranks call it {[len(each) for each in calls]} times")
        return
    for place, row in enumerate(zip(*calls, strict=True), 1):
        total = sum(call["count"] for call in row)
        for name in row[0]["given"]:
            terms = [np.asarray(call["given"][name]) * call["count"] / total for call in row]
            scale = max(float(np.max(np.abs(term), initial=0.0)) for term in terms)
            due = sum(terms)
            for rank, call in enumerate(row):
                size = float(np.max(np.abs(np.asarray(call["result"][name]) - due), initial=0.0))
                if not size <= _AVERAGE_LIMIT * max(scale, 1e-300) * len(row):
                    found = f"call {place}: {name or 'the result'} is {size:.1e} off on rank {rank}"
                    yield Check("average", claim, False, found, size, _AVERAGE_LIMIT * scale, name or None)
                    return
    yield Check("average", claim, True, f"{len(calls[0])} calls", 0.0, _AVERAGE_LIMIT)


def results(seen: Seen) -> Check:
    """Compare what ``evaluate`` and ``gather`` returned over ranks, and with one process."""
    claim = "evaluate and gather return the same on every rank, and what one process has"
    first = seen.ranks[0].results
    for rank, log in enumerate(seen.ranks[1:], 1):
        for place, (ours, theirs) in enumerate(zip(first, log.results, strict=False), 1):
            if repr(ours) != repr(theirs):
                found = f"call {place} of {ours[0]}: rank {rank} has another result than rank 0"
                return Check("average", claim, False, found)
    if not first:
        return Check("average", claim, True, "neither is called")
    if seen.whole is None or seen.nudged is None:
        return Check("average", claim, True, f"{len(first)} calls; not compared with one process: {seen.no_whole}")
    for ours, other, moved in zip(first, seen.whole.results, seen.nudged.results, strict=False):
        if ours[0] != "evaluate":
            continue
        for name, value in ours[1].items():
            one, nudged = float(other[1][name]), float(moved[1][name])
            size, limit = abs(float(value) - one), _TIMES * abs(nudged - one) + _RELATIVE * abs(one)
            if not size <= limit:
                found = f"evaluate: {name} is {float(value):.7g}, one process has {one:.7g}"
                return Check("average", claim, False, found, size, limit, name)
    return Check("average", claim, True, f"{len(first)} calls")


def printed(seen: Seen) -> Check:
    """Look for numbers on rank 0's lines that are its own."""
    claim = "the numbers that are shown are those of all ranks"
    own = _differs_between_ranks(seen)
    if own is not None:
        return own
    if seen.whole is None or seen.nudged is None:
        return Check("average", claim, None, f"not checked against one process: {seen.no_whole or 'it did not run'}")
    lines = [_by_template(log.lines) for log in (seen.ranks[0], seen.whole, seen.nudged)]
    compared = 0
    for form, mine in lines[0].items():
        for ours, one, moved in zip(mine, lines[1].get(form, []), lines[2].get(form, []), strict=False):
            for (value, half), (due, _), (other, _) in zip(*map(numbers, (ours, one, moved)), strict=False):
                limit = 2.2 * half + _TIMES * abs(due - other) + _RELATIVE * abs(due)
                # whole numbers alone, such as those of warnings, say nothing
                compared += half > 0
                if not abs(value - due) <= limit and not _excused(seen, value, due, half, limit):
                    found = (
                        f"{ours.strip()[:80]!r}: {value:g} is rank 0's own, one process has {due:g}; show hk.average"
                    )
                    return Check("average", claim, False, found, abs(value - due), limit)
    if not compared:
        return Check("average", claim, None, "not checked: the script shows no numbers that one process shows too")
    return Check("average", claim, True, f"{compared} numbers as on one process")


def _by_template(lines: list[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in lines:
        form = template(line)
        if not _TIME.search(form):
            found.setdefault(form, []).append(line)
    return found


def _differs_between_ranks(seen: Seen) -> Check | None:
    """Find a line that every rank shows, with numbers of its own."""
    columns = [_by_template(log.lines) for log in seen.ranks]
    for form, mine in columns[0].items():
        for rank, other in enumerate(columns[1:], 1):
            for ours, theirs in zip(mine, other.get(form, []), strict=False):
                for (a, half), (b, _) in zip(numbers(ours), numbers(theirs), strict=True):
                    if half and a != b:
                        found = f"{ours.strip()[:80]!r} on rank 0, {b:g} for {a:g} on rank {rank}; show hk.average"
                        claim = "the numbers that are shown are those of all ranks"
                        return Check("average", claim, False, found, abs(a - b), 0.0)
    return None


def _excused(seen: Seen, value: float, due: float, half: float, limit: float) -> bool:
    """Say whether a number that one process has not is right: a sum over ranks, a rank's share, or averaged means."""
    size = len(seen.ranks)
    shared = any(abs(value - due * factor) <= limit * max(1.0, factor) for factor in (size, 1 / size))
    if shared and (_read(seen) or not half):
        return True
    for row in zip(*(log.averages for log in seen.ranks), strict=True):
        for name, result in row[0]["result"].items():
            given = [float(np.mean(call["given"][name])) for call in row]
            near = abs(float(np.mean(result)) - value) <= 2 * half + 1e-9 * abs(value)
            if near and min(given) <= float(np.mean(result)) <= max(given) and min(given) <= due <= max(given):
                return True
    return False


def _read(seen: Seen) -> bool:
    return bool(seen.whole is not None and seen.whole.facts.get("size read"))
