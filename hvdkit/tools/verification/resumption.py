"""The contract of step 7: what goes on from a checkpoint is what went on without one, in every part."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from hvdkit.tools.verification.distances import amount, largest
from hvdkit.tools.verification.given import READ, UNKNOWN
from hvdkit.tools.verification.outcomes import GROUPS
from hvdkit.tools.verification.reference import is_joined
from hvdkit.tools.verification.report import Check
from hvdkit.tools.verification.resuming import Resumption, inside_update
from hvdkit.tools.verification.rounding import SOURCE_ALONE, array_within, metric_within
from hvdkit.tools.verification.runs import Runs
from hvdkit.tools.verification.storage import Log, Snapshot, places

_STREAM = "a stream that is read in parts begins anew, since files do not hold its place"
_RANDOM = "random state behind a resume"

Difference = tuple[str, "float | None", "str | None", int]
"""Words, size, name and update of the first difference."""


def checkpoints(seen: Runs) -> Iterator[Check]:
    """Runs that go on from their middle end where the other did, and stop where they must."""
    if seen.unresumed is not None:
        yield Check("checkpoint", "fresh processes go on from checkpoints", False, seen.unresumed)
    elif not seen.resumed:
        yield Check("checkpoint", _claim(seen), None, "not made: something else is wrong")
    anew = False
    for plan, logs in seen.resumed:
        alone = not plan.stop_at and (seen.known["stream"] or _begins_anew(seen, plan, logs))
        anew = anew or alone
        yield _stopped(seen, plan, logs) if plan.stop_at else _continued(seen, plan, logs, alone)
    if seen.resumed:
        yield from _left_out(seen, anew)


def _claim(seen: Runs) -> str:
    # TensorFlow and JAX choose kernels by the shapes that a function meets first
    how = "bit for bit" if seen.framework == "torch" else "but for rounding"
    return f"resumed by fresh processes: the same in every part, {how}"


def _left_out(seen: Runs, anew: bool) -> Iterator[Check]:
    possible = seen.known["resumes_inside"] and not seen.known["metrics_with_states"]
    if possible and inside_update(seen.layout) is not None and not any(plan.file for plan, _ in seen.resumed):
        yield Check("checkpoint", "resumed from a file saved inside an epoch", None, "no such file was written")
    if anew:
        reason = _STREAM if seen.known["stream"] else "a data set of your own, whose order begins anew"
        yield Check("checkpoint", "updates behind a resume", None, reason)
    if seen.random or seen.replayed:
        # a loader of torch's draws from the generator that the model draws from when it begins to read
        draws = seen.framework == "torch" and seen.known["stream"]
        yield Check("checkpoint", _RANDOM, None, _STREAM) if draws else _random_state(seen)


def _random_state(seen: Runs) -> Check:
    """Generators stand behind a resume where they stood; they were set then, so that the rest could be compared."""
    hidden: set[str] = set()
    for plan, logs in seen.resumed:
        for rank, log in enumerate(() if plan.stop_at else logs):
            saved = set(log.facts["saved_generators"])
            then = places(seen.ranks[rank].draws_at(plan.update // seen.layout.steps))
            now = log.snapshots[0].generators
            moved = [name for name in then if now.get(name) != then[name]] + log.facts.get("moved_generators", [])
            hidden |= set(moved) - saved
            wrong = next((name for name in moved if name in saved), None)
            if wrong is not None:
                found = f"rank {rank}: {wrong} does not stand where it stood, from {plan.words}"
                return Check("checkpoint", _RANDOM, False, found, parameter=wrong, update=plan.update)
    if hidden or not any(logs for _, logs in seen.resumed):
        return Check("checkpoint", _RANDOM, None, "files do not hold where TensorFlow's own generators stand")
    return Check("checkpoint", _RANDOM, True, "of every generator that can be read")


def _continued(seen: Runs, plan: Resumption, logs: list[Log], alone: bool) -> Check:
    claim = f"from {plan.words}, {_claim(seen)}"
    source = "the same sums in the same order" if seen.framework == "torch" else SOURCE_ALONE
    found = next(_differences(seen, plan, logs, alone), None)
    if found is not None:
        rank, (words, size, name, update) = found
        return Check("checkpoint", claim, False, f"rank {rank}: {words}", size, None, name, update, source)
    way = f"update {plan.update} alone" if alone else f"from update {plan.update} to {_last(seen, plan)}"
    return Check("checkpoint", claim, True, way, source=source)


def _differences(seen: Runs, plan: Resumption, logs: list[Log], alone: bool) -> Iterator[tuple[int, Difference]]:
    """Yield what ranks did otherwise in a run that went on, the earliest update first, with the rank."""
    ways = {rank: (log.snapshots[0].update, log.snapshots[-1].update) for rank, log in enumerate(logs)}
    for rank, (first, last) in ways.items():
        if (first, last) != (plan.update, _last(seen, plan)):
            way = f"from update {first} to {last}, not from {plan.update} to {_last(seen, plan)}"
            yield rank, (f"it went {way}", None, None, first)
            return
    compared = plan.update if alone else _last(seen, plan)
    for update in range(plan.update, compared + 1):
        for rank, log in enumerate(logs):
            found = _state(seen, plan, rank, log.at(update)) or _rates(plan, log.at(update), seen.ranks[rank])
            if found is not None:
                words, size, name = found
                yield rank, (f"update {update} of the resumed run: {words}", size, name, update)
    files = logs[0].facts.get("files", [])
    if plan.keeps and tuple(files) != plan.keeps:
        yield 0, (f"it keeps {', '.join(files)}, not {', '.join(plan.keeps)}", None, "files", _last(seen, plan))
    for rank, log in enumerate(() if alone else logs):
        differing = _samples(seen, plan, rank, log) or _records(seen, plan, rank, log)
        if differing is not None:
            yield rank, differing


def _rates(plan: Resumption, snapshot: Snapshot, whole: Log) -> tuple[str, float | None, str] | None:
    due = whole.at(snapshot.update).rates
    if snapshot.update == plan.update or snapshot.rates == due:
        return None
    return f"learning rates are {snapshot.rates}, not {due}", None, "learning rate"


def _state(seen: Runs, plan: Resumption, rank: int, snapshot: Snapshot) -> tuple[str, float | None, str] | None:
    """Return the first array that is not as it was in the run without a resume."""
    whole, restored = seen.ranks[rank], snapshot.update == plan.update
    for group in (*GROUPS, "statistics"):
        due = whole.at(snapshot.update)
        if group == "statistics" and restored:
            # they were joined to be saved
            due = next(end for end in whole.ends if end.update == plan.update)
        held, there = snapshot.digests[group], due.digests[group]
        for name in dict.fromkeys([*there, *held]):
            if held.get(name) == there.get(name):
                continue
            if group == "statistics" and name not in _restorable(seen, plan.update):
                continue
            ours, theirs = snapshot.arrays(group), due.arrays(group)
            known = f"{rank}|{name}" if group == "statistics" else name
            exact = restored or seen.framework == "torch"
            if exact or not array_within(seen, group, known, snapshot.update, ours, theirs):
                size = largest(theirs, ours, name)
                return f"{name} differs {amount(size)}", size, name
    return None


def _restorable(seen: Runs, update: int) -> set[str]:
    """Return the statistics that a file can give to all ranks: those that they had in common when it was saved."""
    ends = [next(end for end in log.ends if end.update == update).digests["statistics"] for log in seen.ranks]
    return {name for name in ends[0] if is_joined(name) or all(end.get(name) == ends[0][name] for end in ends)}


def _begins_anew(seen: Runs, plan: Resumption, logs: list[Log]) -> bool:
    """Say whether data of which hvdkit does not draw the order gave other samples to a run that went on."""
    own = seen.twin.facts.get("given_train", {}).get("kind") in (UNKNOWN, *READ)
    return own and any(_samples(seen, plan, rank, log) is not None for rank, log in enumerate(logs))


def _last(seen: Runs, plan: Resumption) -> int:
    return plan.epochs * seen.layout.steps


def _samples(seen: Runs, plan: Resumption, rank: int, log: Log) -> Difference | None:
    ours, due = (_taken(entry, plan.update, _last(seen, plan)) for entry in (log, seen.ranks[rank]))
    for mine, there in zip(ours, due, strict=False):
        if mine != there:
            return f"update {there[0]} of the resumed run has other samples, or in another order", None, None, there[0]
    if len(ours) != len(due):
        return f"{len(ours)} batches instead of {len(due)}", None, None, plan.update
    return None


def _taken(log: Log, update: int, last: int) -> list[Any]:
    micros = [micro for micro in log.micros if update < micro.update <= last]
    return [(micro.update, micro.epoch, micro.count, micro.weight, micro.samples) for micro in micros]


def _records(seen: Runs, plan: Resumption, rank: int, log: Log) -> Difference | None:
    """Compare the history, of the epochs before the resume and behind it."""
    ours, due = log.facts["history"], seen.ranks[rank].facts["history"][: plan.epochs]
    if len(ours) != len(due):
        return f"the history has {len(ours)} epochs instead of {len(due)}", None, "history", 0
    for held, record in zip(ours, due, strict=True):
        for name in dict.fromkeys([*record, *held]):
            mine, there = held.get(name), record.get(name)
            near = seen.framework != "torch" and None not in (mine, there) and metric_within(seen, name, mine, there)
            if not (_same(mine, there) or near):
                return f"epoch {record['epoch']}: {name} is {mine}, not {there}", None, name, 0
    return None


def _same(ours: Any, due: Any) -> bool:
    both = isinstance(ours, float) and isinstance(due, float)
    return ours == due or (both and math.isnan(ours) and math.isnan(due))


def _stopped(seen: Runs, plan: Resumption, logs: list[Log]) -> Check:
    claim = f"a run with {plan.words} stops there"
    for rank, log in enumerate(logs):
        if log.facts["stopped"] != plan.epochs:
            found = f"rank {rank} stopped after epoch {log.facts['stopped']}, not {plan.epochs}"
            return Check("average", claim, False, found, None, None, "stop_at", plan.epochs * seen.layout.steps)
    return Check("average", claim, True, f"on all {len(logs)} ranks")
