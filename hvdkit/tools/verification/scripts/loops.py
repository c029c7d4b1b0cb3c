"""The batches of a loop of one's own: noted on the ranks, and on one process those of all ranks as one."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

from hvdkit.recipe.plan import MicroBatch
from hvdkit.recipe.trees import is_branch
from hvdkit.tools.verification.scripts.job import DOUBLED, RANKS, SINGLE, ScriptJob, Taken
from hvdkit.tools.verification.scripts.recording import Recorder
from hvdkit.training.batch import Batch
from hvdkit.training.batches import Planned

Join = Callable[[list[Any]], Any]
Random = Callable[[], str]


def follow(batches: Any, number: int, recorder: Recorder, random: Random) -> None:
    """Note the batches that a loop takes, of which every epoch gives a few."""
    kind = type(batches)
    own = recorder.job.epoch_steps

    def noted(self: Any) -> Iterator[Batch]:
        updates, limit = 0, _limit(recorder)
        for batch in kind._batches(self):
            recorder.batch(number, batch, random())
            yield batch
            updates += batch.last
            if updates == limit:
                self.set_epoch(batch.epoch + 1)
                return

    body: dict[str, Any] = {"_batches": noted}
    if isinstance(batches, Planned):
        parts = Planned.parts(batches)  # the plan alone: a sampler is not asked for an order
        steps, passes = min(batches.steps, own), len(shortened(parts, own))
        if passes < len(parts):
            recorder.log.shortened.append(number)
        body |= {
            "parts": lambda self: shortened(kind.parts(self), _limit(recorder)),
            "__len__": lambda _: passes,
            "steps": property(lambda _: steps),
        }
    batches.__class__ = type(kind.__name__, (kind,), body)
    recorder.log.lengths[number] = _length(batches)
    recorder.log.samples[number] = batches.samples


def replay(batches: Any, number: int, recorder: Recorder, join: Join, random: Random) -> None:
    """Give a loop on one process the batches that the ranks took."""
    kind, job, run = type(batches), recorder.job, recorder.run
    passes, first = taken_by_ranks(job, number), job.log(RANKS)
    length, steps = (None, None) if first is None else first.lengths.get(number, (None, None))
    position = 0

    def replayed(_: Any) -> Iterator[Batch]:
        nonlocal position
        epoch, last = passes[position][0].epoch if position < len(passes) else None, -1
        while position < len(passes) and passes[position][0].epoch == epoch and passes[position][0].number > last:
            batch = _as_one(passes[position], run, join)
            position, last = position + 1, batch.number
            recorder.batch(number, batch, random())
            yield batch

    body: dict[str, Any] = {"_batches": replayed}
    if length is not None:
        body |= {"__len__": lambda _: length, "steps": property(lambda _: steps)}
    batches.__class__ = type(kind.__name__, (kind,), body)
    recorder.log.lengths[number] = (length, steps)


def shortened(parts: list[MicroBatch], updates: int) -> list[MicroBatch]:
    """Return the batches of the first updates of an epoch and of its last, which may be short."""
    ends = [place + 1 for place, part in enumerate(parts) if part.last]
    if len(ends) <= updates:
        return parts
    if updates == 1:
        return parts[: ends[0]]
    return [*parts[: ends[updates - 2]], *parts[ends[-2] : ends[-1]]]


def _limit(recorder: Recorder) -> int:
    """Return the updates of the next epoch: after two of them a single one, since the script may want ninety."""
    done = len({(batch.shard, batch.epoch) for batch in recorder.log.batches})
    return recorder.job.epoch_steps if done < 2 * max(1, len(recorder.log.lengths)) else 1


def _length(batches: Any) -> tuple[int | None, int | None]:
    try:
        return len(batches), batches.steps
    except (TypeError, ValueError):
        return None, None


def taken_by_ranks(job: ScriptJob, number: int) -> list[tuple[Taken, ...]]:
    """Return what all ranks took at one time, one after the other, of what ``shard`` gave them."""
    logs = [log for log in (job.log(RANKS, rank) for rank in range(job.processes)) if log is not None]
    return list(zip(*([batch for batch in log.batches if batch.shard == number] for log in logs), strict=False))


def join_trees(parts: tuple[Taken, ...], run: str, join: Join) -> Any:
    """Return the samples that all ranks took at one time as one batch."""
    real = [part for part in parts if part.count] or [parts[0]]
    if run in (SINGLE, DOUBLED):
        real = [parts[0]] * (2 if run == DOUBLED else 1)
    trees = [_load(part.file) for part in real]
    return trees[0] if len(trees) == 1 else _join(trees, join)


def _as_one(parts: tuple[Taken, ...], run: str, join: Join) -> Batch:
    tree = join_trees(parts, run, join)
    if run in (SINGLE, DOUBLED):
        parts = (parts[0],) * (2 if run == DOUBLED else 1)
    weight = sum(part.weight for part in parts) / len(parts)
    count = sum(part.count for part in parts)
    place = {"last": parts[0].last, "epoch": parts[0].epoch, "number": parts[0].number}
    return Batch.of(tree, count, None, weight=1.0 if abs(weight - 1) < 1e-9 else weight, **place)


def _load(file: str) -> Any:
    with open(file, "rb") as source:
        return pickle.load(source)


def _join(trees: list[Any], join: Join) -> Any:
    """Return batches, trees of one form, one behind the other."""
    first = trees[0]
    if not is_branch(first):
        return join(trees)
    if isinstance(first, dict):
        return {name: _join([tree[name] for tree in trees], join) for name in first}
    parts = [_join(list(each), join) for each in zip(*trees, strict=True)]
    return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
