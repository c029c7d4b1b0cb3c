"""The contracts of step 5: what updates make of weights, optimizer state and statistics."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from hvdkit.tools.verification.distances import amount, distance, first_apart, largest
from hvdkit.tools.verification.report import Check
from hvdkit.tools.verification.rounding import SOURCE, kinds, limits, nearest
from hvdkit.tools.verification.runs import Runs
from hvdkit.tools.verification.storage import Log, Snapshot

GROUPS = {"parameters": "weights", "slots": "optimizer state"}
NOT_REPLAYED = "training draws random numbers that cannot be drawn again"
_DOUBTFUL = 1e-2


def agreement(seen: Runs) -> Check:
    """All ranks hold the same weights and optimizer state after every update."""
    claim = "ranks agree bit for bit after every update"
    for update in range(1, seen.updates + 1):
        first, *others = (log.at(update) for log in seen.ranks)
        for rank, other in enumerate(others, 1):
            apart = first_difference(first, other, tuple(GROUPS))
            if apart is not None:
                group, name = apart
                size = largest(first.arrays(group), other.arrays(group), name)
                found = f"update {update}: {name} of rank {rank} differs from rank 0's {amount(size)}"
                return Check("distribute", claim, False, found, size, 0.0, name, update)
    return Check("distribute", claim, True, f"{seen.updates} updates", 0.0, 0.0)


def first_difference(first: Snapshot, other: Snapshot, groups: tuple[str, ...]) -> tuple[str, str] | None:
    """Return group and name of the first array that two states do not share bit for bit; None if they are the same."""
    for group in groups:
        ours, theirs = first.digests[group], other.digests[group]
        for name in [*ours, *theirs]:
            if ours.get(name) != theirs.get(name):
                return group, name
    return None


def against_twin(seen: Runs) -> Iterator[Check]:
    """Weights and optimizer state are those of the twin; of the whole batch where statistics are the global batch's."""
    if seen.known["synchronised"]:
        for group, what in GROUPS.items():
            claim = f"{what} of one process on the global batch, but for rounding"
            yield follows(seen, seen.ranks[0], seen.whole, group, Check("distribute", claim, True, "rank 0"))
        return
    words = "bit for bit" if seen.exact else "but for rounding"
    if seen.hidden:
        yield Check("distribute", f"weights and optimizer state of the twin, {words}", None, NOT_REPLAYED)
        return
    for group, what in GROUPS.items():
        claim = f"{what} of the twin (one process, ranks' batches one by one), {words}"
        yield follows(seen, seen.ranks[0], seen.twin, group, Check("distribute", claim, True, "rank 0"), seen.exact)


def follows(seen: Runs, ours: Log, due: Log, group: str, check: Check, exact: bool = False) -> Check:
    """Return how a run follows another, update by update.

    Args:
        seen: All runs.
        ours: The run that is judged.
        due: What it must follow.
        group: Of arrays.
        check: Has step and claim.
        exact: Bit for bit, not within what rounding can do.
    """
    curve = list(_distances(seen, ours, due, group, exact))
    sizes, bounds = tuple(size for size, _, _ in curve), tuple(bound for _, bound, _ in curve)
    base = replace(check, source=_source(exact), sizes=sizes, limits=bounds)
    for update, (size, bound, name) in enumerate(curve, 1):
        if name is not None:
            found = f"update {update}: distance {size:.1e} (limit {bound:.0e}), first in {name}"
            if seen.layout.dtype == "float32" and bound > 0 and size < _DOUBTFUL:
                found += "; rounding can grow to this in float32: --dtype float64 tells it from a fault"
            return replace(base, passed=False, found=found, size=size, limit=bound, parameter=name, update=update)
    if not due.snapshots[-1].digests[group]:
        return Check(check.step, check.claim, True, "the optimizer keeps none")
    if not _moved(due, group):
        return Check(check.step, check.claim, None, "nothing moved")
    found = f"distance {sizes[-1]:.1e}" if sizes[-1] else "bit for bit the same"
    found += f" after {len(curve)} updates"
    return replace(base, passed=True, found=found, size=sizes[-1], limit=bounds[-1])


def _distances(seen: Runs, ours: Log, due: Log, group: str, exact: bool) -> Iterator[tuple[float, float, str | None]]:
    """Yield after every update the distance that is nearest to its limit, the limit, and what is too far."""
    start, last = due.at(0).arrays(group), min(log.snapshots[-1].update for log in (ours, due))
    for update, (noisy, allowed) in enumerate(limits(seen, group)[:last], 1):
        here, there = (kinds(log.at(update), group, noisy) for log in (ours, due))
        closest = (0.0, 0.0)
        for kind, arrays in there.items():
            held, limit = here.get(kind, {}), 0.0 if exact else allowed.get(kind, 0.0)
            missing = next((name for name in arrays if name not in held), None)
            size = math.inf if missing is not None else distance(held, arrays, start)
            if not size <= limit:
                yield size, limit, missing or first_apart(held, arrays, start, limit)
                break
            if kind != "noise":
                closest = nearest(closest, (size, limit))
        else:
            yield (*closest, None)


def _source(exact: bool) -> str:
    return "the same sums in the same order" if exact else SOURCE


def _moved(log: Log, group: str) -> bool:
    return any(snapshot.digests[group] != log.at(0).digests[group] for snapshot in log.snapshots)
