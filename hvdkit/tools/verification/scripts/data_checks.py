"""The contract of step 3, as far as the batches that ranks were given show it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from hvdkit.tools.verification.report import Check
from hvdkit.tools.verification.scripts.job import Taken
from hvdkit.tools.verification.scripts.seen import Seen

_CLAIM = "every rank takes samples of its own, all ranks together each once"


def data(seen: Seen) -> Iterator[Check]:
    """Yield the checks of step 3."""
    if not any(log.lengths for log in seen.ranks):
        yield _unsharded(seen)
        return
    columns = [log.batches for log in seen.ranks]
    lengths = [len(column) for column in columns]
    if len(set(lengths)) > 1:
        yield Check("shard", "the same number of batches on every rank", False, f"ranks take {lengths} batches")
        return
    if not columns[0]:
        yield Check("shard", _CLAIM, None, "not checked: the batches cannot be seen")
        return
    yield _own_samples(seen, list(zip(*columns, strict=True)))
    if seen.job.framework != "keras":  # fit weighs the samples themselves
        yield _weights(list(zip(*columns, strict=True)), len(seen.ranks))


def _unsharded(seen: Seen) -> Check:
    first, *others = seen.ranks
    same = False
    if first.reductions and all(log.reductions for log in others):
        ours = first.reductions[0].arrays("local")
        same = bool(ours) and all(_equal(ours, log.reductions[0].arrays("local")) for log in others)
    elif first.updates and all(log.updates for log in others):
        same = all(log.updates[0].digests == first.updates[0].digests for log in others)
    if same:
        found = "hk.shard is never called, and all ranks have the same gradients: they train on the same samples"
        return Check("shard", _CLAIM, False, found, update=1)
    return Check("shard", _CLAIM, None, "not checked: hk.shard is never called; ranks have gradients of their own")


def _equal(ours: dict, theirs: dict) -> bool:  # type: ignore[type-arg]
    return ours.keys() == theirs.keys() and all((ours[name] == theirs[name]).all() for name in ours)


def _own_samples(seen: Seen, rows: list[tuple[Taken, ...]]) -> Check:
    for row in rows:
        first = row[0]
        for rank, other in enumerate(row[1:], 1):
            if other.count and first.count and first.digests and other.digests == first.digests:
                found = f"{_place(first)}: rank {rank} takes the same samples as rank 0"
                return Check("shard", _CLAIM, False, found, parameter=f"batch {first.number}")
    if any(batch.indices is None for row in rows for batch in row):
        if not all(batch.digests for row in rows for batch in row):
            return Check("shard", _CLAIM, None, "not checked: the samples are no arrays that can be compared")
        return Check("shard", _CLAIM, True, f"{len(rows)} batches of each rank differ")
    epochs: dict[tuple[int, int], Counter[int]] = {}
    for row in rows:
        drawn = epochs.setdefault((row[0].shard, row[0].epoch), Counter())
        for batch in row:
            drawn.update(batch.indices if batch.count and batch.indices is not None else [])
    complete = 0
    for (shard, epoch), drawn in epochs.items():
        log = seen.ranks[0]
        samples = log.samples.get(shard)
        whole = shard not in log.shortened and samples is not None and epoch <= 1
        repeated = [index for index, times in drawn.items() if times > 1]
        if repeated and not _own_repeats(rows, shard, epoch):
            found = f"epoch {epoch + 1}: sample {repeated[0]} is taken {drawn[repeated[0]]} times"
            return Check("shard", _CLAIM, False, found, parameter=f"sample {repeated[0]}")
        if whole and not repeated and len(drawn) != samples:
            found = f"epoch {epoch + 1}: {len(drawn)} of {samples} samples are taken"
            return Check("shard", _CLAIM, False, found)
        complete += whole
    short = "" if complete else "; epochs are shortened, so that all samples were not seen"
    return Check("shard", _CLAIM, True, f"{len(rows)} batches of each rank{short}")


def _own_repeats(rows: list[tuple[Taken, ...]], shard: int, epoch: int) -> bool:
    """Say whether a single rank draws a sample twice, as samplers with replacement and padding do."""
    for rank in range(len(rows[0])):
        drawn: Counter[int] = Counter()
        for row in rows:
            if (row[rank].shard, row[rank].epoch) == (shard, epoch):
                drawn.update(row[rank].indices or [])
        if any(times > 1 for times in drawn.values()):
            return True
    return False


def _weights(rows: list[tuple[Taken, ...]], size: int) -> Check:
    claim = "a short batch counts for its samples alone"
    window: list[tuple[Taken, ...]] = []
    short = 0
    for row in rows:
        window.append(row)
        if not row[0].last:
            continue
        total = sum(batch.count for each in window for batch in each)
        for each in window:
            for rank, batch in enumerate(each):
                due = batch.count * size * len(window) / total if total else 0.0
                short += batch.weight != 1.0
                if abs(batch.weight - due) > 1e-6:
                    found = f"{_place(batch)}, rank {rank}: {batch.count} samples count {batch.weight:g}, not {due:g}"
                    return Check("shard", claim, False, found, abs(batch.weight - due), 1e-6)
        window = []
    return Check("shard", claim, True, f"{short} short batches" if short else "there are no short batches", 0.0, 1e-6)


def _place(batch: Taken) -> str:
    return f"epoch {batch.epoch + 1}, batch {batch.number + 1}"
