"""The contracts of steps 5, 7 and 8: updates, metrics, and what goes on from a checkpoint."""

from __future__ import annotations

import math
from collections.abc import Iterator

from hvdkit.tools.verification.distances import amount, distance, first_apart, largest
from hvdkit.tools.verification.report import Check
from hvdkit.tools.verification.runs import Runs
from hvdkit.tools.verification.storage import Arrays, Log, Snapshot

BANDS = {
    "parameters": {"float32": 1e-4, "float64": 1e-10},
    # the latest gradient weighs more in it than in the weights: one ReLU or maximum that rounding turns showed as 4e-4
    "slots": {"float32": 1e-3, "float64": 1e-9},
}
_DOUBTFUL = 1e-2
_METRIC_LIMITS = {"float32": 1e-5, "float64": 1e-9}


def agreement(seen: Runs) -> Check:
    """All ranks hold the same weights and optimizer state after every update."""
    claim = "ranks agree bit for bit after every update"
    for update in range(1, seen.updates + 1):
        first, *others = (log.at(update) for log in seen.ranks)
        for rank, other in enumerate(others, 1):
            apart = _apart(first, other)
            if apart is not None:
                group, name = apart
                size = largest(first.arrays(group), other.arrays(group), name)
                found = f"update {update}: {name} of rank {rank} differs from rank 0's {amount(size)}"
                return Check("distribute", claim, False, found, size, 0.0, name, update)
    return Check("distribute", claim, True, f"{seen.updates} updates", 0.0, 0.0)


def _apart(
    first: Snapshot, other: Snapshot, groups: tuple[str, ...] = ("parameters", "slots")
) -> tuple[str, str] | None:
    for group in groups:
        ours, theirs = first.digests[group], other.digests[group]
        for name in [*ours, *theirs]:
            if ours.get(name) != theirs.get(name):
                return group, name
    return None


def against_twin(seen: Runs) -> Iterator[Check]:
    """Weights and optimizer state are those of the twin."""
    exact = seen.framework == "torch" and seen.layout.size == 2 and seen.on_cpu and not seen.known["reordered"]
    words = "bit for bit" if exact else "but for rounding"
    for group, what in (("parameters", "weights"), ("slots", "optimizer state")):
        claim = f"{what} of the twin (one process, ranks' batches one by one), {words}"
        if seen.known["synchronised"]:
            yield Check("distribute", claim, None, "not made: BatchNorm has the statistics of the global batch")
            continue
        limits = [0.0] * (seen.updates + 1) if exact else _limits(seen, group)
        yield _follows(seen, seen.twin, group, claim, limits)


def against_whole(seen: Runs) -> Iterator[Check]:
    """Weights and optimizer state are those of one process on the global batch."""
    for group, what in (("parameters", "weights"), ("slots", "optimizer state")):
        claim = f"{what} of one process on the global batch"
        reason = _no_whole(seen)
        if reason:
            yield Check("distribute", claim, None, reason)
        else:
            yield _follows(seen, seen.whole, group, claim, _limits(seen, group))


def _no_whole(seen: Runs) -> str:
    if seen.local_statistics:
        return "not made: BatchNorm's statistics are each rank's own"
    return "not made: training draws random numbers" if seen.random else ""


def _limits(seen: Runs, group: str) -> list[float]:
    """Return the largest right distance at each update: the contract's band, or ten times the natural one."""
    band = BANDS[group][seen.layout.dtype]
    if _no_whole(seen) or seen.known["synchronised"]:
        return [band] * (seen.updates + 1)
    start = seen.whole.at(0).arrays(group)
    natural = [
        distance(_values(seen.twin.at(update), group), _values(seen.whole.at(update), group), start)
        for update in range(seen.updates + 1)
    ]
    return [max(band, 10 * value) if math.isfinite(value) else band for value in natural]


def _follows(seen: Runs, other: Log, group: str, claim: str, limits: list[float]) -> Check:
    """Compare rank 0 with a reference after every update."""
    start = other.at(0).arrays(group)
    size = 0.0
    for update in range(1, seen.updates + 1):
        ours, theirs = _values(seen.ranks[0].at(update), group), _values(other.at(update), group)
        size, limit = distance(ours, theirs, start), limits[update]
        if not size <= limit:
            name = first_apart(ours, theirs, start, limit)
            found = f"update {update}: distance {size:.1e} (limit {limit:.0e}), first in {name}"
            if seen.layout.dtype == "float32" and limit > 0 and size < _DOUBTFUL:
                found += "; rounding can grow to this in float32: --dtype float64 tells it from a fault"
            return Check("distribute", claim, False, found, size, limit, name, update)
    found = "bit for bit the same" if size == 0 else f"distance {size:.1e} after {seen.updates} updates"
    moved = any(other.at(update).digests[group] != other.at(0).digests[group] for update in range(1, seen.updates + 1))
    return Check("distribute", claim, True if moved else None, found if moved else "nothing moved", size, limits[-1])


def _values(snapshot: Snapshot, group: str) -> Arrays:
    """Return a group without counters, which frameworks keep in different ways when they accumulate."""
    return {
        name: value
        for name, value in snapshot.arrays(group).items()
        if not any(word in name for word in ("iteration", "learning_rate"))
    }


def metrics(seen: Runs) -> Iterator[Check]:
    """Metrics are those of the twin, on every rank."""
    claim = "the same averaged metrics on every rank"
    records = [log.facts["epochs"] for log in seen.ranks]
    for rank, other in enumerate(records[1:], 1):
        for epoch, (ours, theirs) in enumerate(zip(records[0], other, strict=False), 1):
            for name in ours:
                if ours[name] != theirs.get(name):
                    found = f"epoch {epoch}: {name} is {theirs.get(name)} on rank {rank} and {ours[name]} on rank 0"
                    if "average" in seen.known["off"]:
                        found += "; Recipe.average is None: give hvdkit.Average()"
                    yield Check("average", claim, False, found, None, 0.0, name, epoch * seen.layout.steps)
                    return
    yield Check("average", claim, True, f"{len(records[0])} epochs", 0.0, 0.0)
    yield _against_twin(seen)
    yield _statistics(seen)


def _against_twin(seen: Runs) -> Check:
    who, other = ("one process", seen.whole) if seen.known["synchronised"] else ("the twin", seen.twin)
    claim = f"losses and metrics over all samples, as {who} has them"
    limit = _METRIC_LIMITS[seen.layout.dtype]
    largest_yet, compared = 0.0, set()
    for epoch, (ours, due) in enumerate(zip(seen.ranks[0].facts["epochs"], other.facts["epochs"], strict=False), 1):
        for name, value in due.items():
            if name not in ours:
                continue
            size = abs(ours[name] - value) / max(abs(value), 1e-12)
            # one sample that lies between two classes may fall to either side
            allowed = limit if name.endswith("loss") or ours[name] == value else max(limit, 2.0 / seen.known["kept"])
            if not size <= allowed:
                found = f"epoch {epoch}: {name} is {ours[name]:.7g}, {who} has {value:.7g}"
                return Check("average", claim, False, found, size, allowed, name, epoch * seen.layout.steps)
            compared.add(name)
            largest_yet = max(largest_yet, size)
    return Check("average", claim, True, f"{', '.join(sorted(compared))}: within {largest_yet:.0e}", largest_yet, limit)


def _statistics(seen: Runs) -> Check:
    claim = "BatchNorm's statistics agree when they are evaluated and saved"
    first = seen.ranks[0].facts["statistics"]["statistics"]
    if not first:
        return Check("average", claim, None, "the model has none")
    for rank, log in enumerate(seen.ranks):
        for name, value in log.facts["statistics"]["statistics"].items():
            if value != first[name]:
                return Check("average", claim, False, f"{name} of rank {rank} differs from rank 0's", None, 0.0, name)
    return Check("average", claim, True, f"{len(first)} arrays", 0.0, 0.0)


def checkpoints(seen: Runs) -> Check:
    """A run that goes on from its middle ends where the other did."""
    claim = "saved in the middle and resumed by fresh processes: the same curve, bit for bit"
    if not seen.resumed:
        return Check("checkpoint", claim, None, "not made: something else is wrong")
    for rank, (log, whole) in enumerate(zip(seen.resumed, seen.ranks, strict=True)):
        for snapshot in log.snapshots:
            other = next((entry for entry in whole.snapshots if entry.update == snapshot.update), None)
            where = f"update {snapshot.update} of the resumed run, rank {rank}"
            if other is None:
                return Check("checkpoint", claim, False, f"{where}: there is no such update", update=snapshot.update)
            apart = _apart(other, snapshot)
            if apart is not None:
                group, name = apart
                size = largest(other.arrays(group), snapshot.arrays(group), name)
                found = f"{where}: {name} differs {amount(size)}"
                return Check("checkpoint", claim, False, found, size, 0.0, name, snapshot.update)
    first, last = (seen.resumed[0].snapshots[i].update for i in (0, -1))
    if first == 0 or last != seen.layout.updates:
        return Check("checkpoint", claim, False, f"it went from update {first} to {last}", update=first)
    return Check("checkpoint", claim, True, f"from update {first} to {last}", 0.0, 0.0)
