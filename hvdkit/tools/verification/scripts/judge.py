"""Judges the runs, step by step, in the order in which one spoils the next."""

from __future__ import annotations

from collections.abc import Iterator

from hvdkit.tools.verification.distances import amount, largest
from hvdkit.tools.verification.report import Check
from hvdkit.tools.verification.scripts.data_checks import data
from hvdkit.tools.verification.scripts.gradient_checks import gradients
from hvdkit.tools.verification.scripts.job import Update
from hvdkit.tools.verification.scripts.metric_checks import averages, printed, results
from hvdkit.tools.verification.scripts.seen import Seen
from hvdkit.tools.verification.scripts.whole_checks import mean_loss, whole

_STEPS = {
    "shard": "shard",
    "scale_lr": "scale_lr",
    "warmup": "scale_lr",
    "distribute": "distribute",
    "broadcast": "broadcast",
    "restore": "checkpoint",
    "save": "checkpoint",
    "pin": "pin",
    "init": "init",
}
# in the words of a refusal that no verb, but fit or a loop over batches, has made
_WORDS = {
    "broadcast": "broadcast",
    "distribut": "distribute",
    "shard": "shard",
    "samples": "shard",
    "learning rate": "scale_lr",
}
_RATE_BAND = 1e-6


def judge(seen: Seen) -> Iterator[Check]:
    """Yield all checks."""
    if seen.failed is not None:
        verb, words = seen.failed
        yield Check(
            _STEPS.get(verb) or _step_in(words),
            "the verbs take what the script gives them",
            False,
            f"{verb}: {words}" if verb else words,
        )
    yield _init(seen)
    # a rank that was ended has left no log: what it did cannot be compared
    if not seen.updates or len(seen.ranks) < seen.job.processes:
        return
    yield _broadcast(seen)
    yield from data(seen)
    yield from _rates(seen)
    yield _agreement(seen)
    yield from gradients(seen)
    yield from (mean_loss(seen),) if seen.no_whole else whole(seen)
    yield from averages(seen)
    yield results(seen)
    yield printed(seen)
    yield _files(seen)


def _step_in(words: str) -> str:
    """Return the step that a refusal speaks of."""
    found = [(words.lower().index(part), step) for part, step in _WORDS.items() if part in words.lower()]
    return min(found)[1] if found else "recipe"


def _init(seen: Seen) -> Check:
    claim = "the script joins the job"
    if not seen.calls("init"):
        return Check("init", claim, False, "hk.init() is never called: every process trains alone")
    return Check("init", claim, True, f"{len(seen.ranks)} ranks")


def _broadcast(seen: Seen) -> Check:
    claim = "all ranks start from one state, bit for bit, which is that of one process"
    forgotten = next((log.facts["not broadcast"] for log in seen.ranks if log.facts.get("not broadcast")), None)
    if forgotten and not seen.calls("restore", "load_model"):
        kind = next(start.kind for start in seen.ranks[0].starts if start.optimizer == forgotten[0])
        what = f"what optimizer {forgotten[0]} ({kind}) trains"
        found = f"hk.broadcast is not called for {what} before its first step: ranks start alike by their seeds at best"
        return Check("broadcast", claim, False, found, update=0)
    for place, first in enumerate(seen.ranks[0].starts):
        for rank, log in enumerate(seen.ranks[1:], 1):
            apart = _apart(first, log.starts[place]) if place < len(log.starts) else None
            if apart is not None and seen.fact("late"):
                return Check("broadcast", claim, None, "not checked: the broadcast comes after the first update")
            if apart is not None:
                group, name = apart
                size = largest(first.arrays(group), log.starts[place].arrays(group), name)
                found = f"{name} of rank {rank} differs from rank 0's {amount(size)} before the first update"
                return Check("broadcast", claim, False, found, size, 0.0, name, 0)
        if seen.whole is not None and place < len(seen.whole.starts):
            apart = _apart(seen.whole.starts[place], first)
            if apart is not None and apart[0] == "parameters":
                group, name = apart
                size = largest(first.arrays(group), seen.whole.starts[place].arrays(group), name)
                found = f"one process starts from another state: {name} differs {amount(size)}"
                return Check("broadcast", claim, False, found, size, 0.0, name, 0)
    return Check("broadcast", claim, True, f"{len(seen.ranks[0].starts)} optimizers and what they train", 0.0, 0.0)


def _apart(first: Update, second: Update) -> tuple[str, str] | None:
    for group, ours in sorted(first.digests.items()):
        theirs = second.digests.get(group, {})
        for name in [*ours, *theirs]:
            if ours.get(name) != theirs.get(name):
                return group, name
    return None


def _rates(seen: Seen) -> Iterator[Check]:
    claim = "the same learning rates on every rank"
    first = seen.ranks[0].updates
    for rank, log in enumerate(seen.ranks[1:], 1):
        for ours, theirs in zip(first, log.updates, strict=False):
            if ours.rates != theirs.rates:
                found = f"update {ours.number}: {theirs.rates} on rank {rank} and {ours.rates} on rank 0"
                yield Check("scale_lr", claim, False, found, None, 0.0, None, ours.number)
                return
    shown = sorted({rate for update in first for rate in update.rates})
    words = ", ".join(f"{rate:g}" for rate in shown[:3]) + (", …" if len(shown) > 3 else "")
    unscaled = "" if seen.calls("scale_lr") else "; scale_lr is not called"
    yield Check("scale_lr", claim, True, words + unscaled, 0.0, 0.0)
    if seen.whole is None:
        return
    claim = "the learning rates that one process has for the global batch"
    for ours, other in zip(first, seen.whole.updates, strict=False):
        for mine, due in zip(ours.rates, other.rates, strict=False):
            if abs(mine - due) > _RATE_BAND * abs(due):
                found = f"update {ours.number}: {mine:g}, one process has {due:g}"
                yield Check("scale_lr", claim, False, found, abs(mine - due), _RATE_BAND * abs(due), None, ours.number)
                return
    yield Check("scale_lr", claim, True, f"{seen.updates} updates", 0.0, _RATE_BAND)


def _agreement(seen: Seen) -> Check:
    claim = "ranks agree bit for bit after every update"
    steps = [len(log.updates) for log in seen.ranks]
    for place in range(seen.updates):
        first = seen.ranks[0].updates[place]
        if first.number == 1 and seen.fact("late"):
            continue  # a broadcast follows it
        for rank, log in enumerate(seen.ranks[1:], 1):
            other = log.updates[place]
            apart = _apart(first, other)
            if apart is not None:
                group, name = apart
                size = largest(first.arrays(group), other.arrays(group), name)
                found = f"update {first.number}: {name} of rank {rank} differs from rank 0's {amount(size)}"
                if first.optimizer not in seen.ranks[0].facts.get("distributed", []) and not seen.fact("tape"):
                    found += f"; hk.distribute is never called for optimizer {first.optimizer} ({first.kind})"
                return Check("distribute", claim, False, found, size, 0.0, name, first.number)
    if len(set(steps)) > 1:
        return Check("distribute", claim, False, f"ranks make {steps} updates", update=min(steps) + 1)
    return Check("distribute", claim, True, f"{seen.updates} updates", 0.0, 0.0)


def _files(seen: Seen) -> Check:
    claim = "rank 0 alone writes files"
    first = set(seen.ranks[0].files)
    for rank, log in enumerate(seen.ranks[1:], 1):
        both = [name for name in log.files if name in first]
        alone = [name for name in log.files if name not in first and str(rank) not in name]
        if both or alone:
            name = [*both, *alone][0]
            found = f"rank {rank} writes {name}{' too' if both else ''}; call hk.save, or write on rank 0"
            return Check("checkpoint", claim, False, found, parameter=name)
    return Check("checkpoint", claim, True, ", ".join(sorted(first)[:4]) or "no files")
