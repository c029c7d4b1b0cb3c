"""Statistics such as BatchNorm's: each rank's own in an epoch, and joined by their mean behind it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hvdkit.tools.verification.distances import distance
from hvdkit.tools.verification.outcomes import agreement, follows
from hvdkit.tools.verification.reference import is_joined
from hvdkit.tools.verification.report import Check
from hvdkit.tools.verification.rounding import ALONE, FLOOR, SOURCE_ALONE, nearest, stored
from hvdkit.tools.verification.runs import Runs
from hvdkit.tools.verification.storage import Arrays, Snapshot

_AGREE = "BatchNorm's statistics agree when they are evaluated and saved"
_MEAN = "BatchNorm's statistics are the mean of the ranks' behind every epoch, as the twin has them"
_MOVE = "statistics move with each rank's own batches, as in training"


def statistics_contract(seen: Runs) -> Iterator[Check]:
    """Statistics agree and are the twin's, as long as the weights are: those come from them."""
    if not any(snapshot.digests["statistics"] for snapshot in seen.ranks[0].snapshots):
        yield Check("average", _AGREE, True, "the model has none")
        return
    yield _agree(seen)
    if seen.known["synchronised"]:
        return
    trusted = _trusted(seen)
    yield _mean(seen, trusted)
    yield _move(seen, trusted)


def _trusted(seen: Runs) -> int:
    """Return the last update that began with weights as they should be."""
    checks = [agreement(seen), follows(seen, seen.ranks[0], seen.twin, "parameters", agreement(seen), seen.exact)]
    return min([check.update for check in checks if check.passed is False and check.update] or [seen.updates])


def _agree(seen: Runs) -> Check:
    for rank, log in enumerate(seen.ranks):
        for ours, theirs in zip(log.ends, seen.ranks[0].ends, strict=False):
            for name in ours.digests["statistics"]:
                apart = ours.digests["statistics"][name] != theirs.digests["statistics"].get(name)
                if apart and is_joined(name):
                    found = f"after update {ours.update}: {name} of rank {rank} differs from rank 0's"
                    return Check("average", _AGREE, False, found, None, 0.0, name, ours.update)
    return Check("average", _AGREE, True, f"{len(seen.ranks[0].ends)} times", 0.0, 0.0)


def _mean(seen: Runs, trusted: int) -> Check:
    moved = {end.update: end for end in seen.rounded.ends}
    ends = [
        (rank, ours, twin, moved.get(twin.update))
        for rank, log in enumerate(seen.ranks)
        for ours, twin in zip(log.ends, seen.twin.ends, strict=False)
        if ours.update <= trusted
    ]
    return _compared(seen, Check("average", _MEAN, True, f"{len(seen.ranks[0].ends)} times"), ends)


def _move(seen: Runs, trusted: int) -> Check:
    moved = {snapshot.update: snapshot for snapshot in seen.rounded.snapshots}
    updates = [
        (rank, log.at(update), seen.twin.at(update), moved.get(update))
        for update in range(1, trusted + 1)
        for rank, log in enumerate(seen.ranks)
    ]
    return _compared(seen, Check("average", _MOVE, True, f"in {trusted} updates"), updates)


def _compared(seen: Runs, check: Check, places: list[tuple[int, Snapshot, Snapshot, Snapshot | None]]) -> Check:
    """Compare ranks' statistics with the twin's, in the order of updates, as far apart as rounding brings them."""
    furthest, bound = 0.0, 0.0
    largest: dict[str, float] = {}
    eps = float(np.finfo(seen.layout.dtype).eps)
    for rank, ours, twin, rounded in sorted(places, key=lambda place: place[1].update):
        start = seen.ranks[rank].at(0).arrays("statistics")
        held, due = ours.arrays("statistics"), _of_rank(twin, rank)
        moved = due if rounded is None else _of_rank(rounded, rank)
        for name, value in due.items():
            alone: tuple[Arrays, Arrays] = ({name: held[name]} if name in held else {}, {name: value})
            size = distance(*alone, start) if alone[0] else np.inf
            spread = distance({name: moved[name]}, alone[1], start)
            largest[name] = max(largest.get(name, 0.0), spread if np.isfinite(spread) else 0.0)
            limit = ALONE * largest[name] + FLOOR * eps + stored(alone[1], start, eps)
            if not size <= limit:
                found = f"update {ours.update}, rank {rank}: {name} is {size:.1e} from the twin's (limit {limit:.0e})"
                return Check(check.step, check.claim, False, found, size, limit, name, ours.update, SOURCE_ALONE)
            furthest, bound = nearest((furthest, bound), (size, limit))
    return Check(check.step, check.claim, True, check.found, furthest, bound, source=SOURCE_ALONE)


def _of_rank(snapshot: Snapshot, rank: int) -> Arrays:
    prefix = f"{rank}|"
    arrays = snapshot.arrays("statistics")
    return {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}
