"""Does the script compute what one process would on whole global batches; if that cannot be: is its loss a mean."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvdkit.tools.verification.distances import distance, first_apart, moved_by
from hvdkit.tools.verification.report import Check
from hvdkit.tools.verification.rounding import UNITS
from hvdkit.tools.verification.scripts.job import ScriptLog
from hvdkit.tools.verification.scripts.seen import Seen
from hvdkit.tools.verification.storage import Arrays

_TIMES = 10
_AT_REST = 0.01
_LIMIT = f"{_TIMES} times what {UNITS} units in the last place do"
_FLOOR = {"float32": 1e-6, "float64": 1e-13}


def whole(seen: Seen) -> Iterator[Check]:
    """Compare rank 0's gradients and weights with those of one process."""
    yield _gradients_of_whole(seen)
    yield _weights_of_whole(seen)


def _gradients_of_whole(seen: Seen) -> Check:
    """Compare reduced gradients, which clipping and Adam have not brought to one size yet."""
    claim = "reduced gradients are those of one process on whole global batches"
    if seen.whole is None or seen.nudged is None:
        return Check("recipe", claim, None, "not checked: the run on one process has left nothing")
    columns = [log.reductions for log in (seen.ranks[0], seen.whole, seen.nudged)]
    size = limit = spread = largest = 0.0
    number = min(map(len, columns))
    for place in range(number):
        a, b, c = (column[place].arrays("after") for column in columns)
        zeros = {name: np.zeros_like(value) for name, value in b.items()}
        kind = str(next(iter(b.values())).dtype) if b else "float32"
        largest = max(largest, moved_by(b, zeros))
        # where training has come to rest, gradients are small sums of terms that are not
        share = min(1.0, moved_by(b, zeros) / (_AT_REST * largest)) if largest else 1.0
        spread = max(spread, share * distance(c, b, zeros))
        size, limit = share * distance(a, b, zeros), _TIMES * (spread + _FLOOR.get(kind, 1e-2))
        if not size <= limit:
            name = first_apart(a, b, zeros, limit)
            found = (
                f"reduction {place + 1}: distance {size:.1e} (limit {limit:.1e}), first in {name}{_why(a, b, zeros)}"
            )
            return Check("recipe", claim, False, found, size, limit, name, place + 1)
    words = f"{number} reductions, distance {size:.1e}; limit {limit:.1e}: {_LIMIT}"
    return Check(
        "recipe", claim, True if number else None, words if number else "not checked: none was seen", size, limit
    )


def _weights_of_whole(seen: Seen) -> Check:
    claim = "weights of one process on whole global batches"
    one, nudged = seen.whole, seen.nudged
    if one is None or nudged is None:
        words = seen.errors.get("whole") or seen.errors.get("nudged") or "the run on one process has left nothing"
        return Check("recipe", claim, None, f"not checked: {words}")
    starts = {start.optimizer: start.arrays("parameters") for start in one.starts}
    size = limit = spread = 0.0
    number = min(seen.updates, len(one.updates), len(nudged.updates))
    for place in range(number):
        ours, theirs, moved = (log.updates[place] for log in (seen.ranks[0], one, nudged))
        start = starts[theirs.optimizer]
        a, b, c = (update.arrays("parameters") for update in (ours, theirs, moved))
        spread = max(spread, distance(c, b, start))
        size, limit = distance(a, b, start), max(_TIMES * spread, _floor(b, start))
        if not size <= limit:
            name = first_apart(a, b, start, limit)
            found = f"update {ours.number}: distance {size:.1e} (limit {limit:.1e}), first in {name}{_why(a, b, start)}"
            return Check("recipe", claim, False, found, size, limit, name, ours.number)
    if number < seen.updates or not number:
        found = f"one process makes {len(one.updates)} updates, the ranks {seen.updates}"
        return Check("recipe", claim, False, found, update=number + 1)
    words = f"distance {size:.1e} after {number} updates; limit {limit:.1e}: {_LIMIT}"
    return Check("recipe", claim, True, words, size, limit)


def _floor(arrays: Arrays, start: Arrays) -> float:
    """Return what rounding does to the weights themselves, as a share of their movement."""
    kind = str(next(iter(arrays.values())).dtype) if arrays else "float32"
    moved = distance(start, arrays, {name: np.zeros_like(value) for name, value in arrays.items()})
    return _FLOOR.get(kind, 1e-2) * (1.0 + (1.0 / moved if moved and math.isfinite(moved) else 0.0))


def _why(a: Arrays, b: Arrays, start: Arrays) -> str:
    """Say what the difference may come from."""
    ours, due = (_flat(each) - _flat({name: start[name] for name in each}) for each in (a, b))
    along = float(ours @ due) / float(due @ due) if due.any() else 0.0
    if 0 < along < 0.9 or along > 1.1:
        return (
            f"; ranks move {along:.2g} times as far: is the loss a sum, or a mean over less than all samples? take the "
            "mean over the batch, or distribute(..., reduction='sum') in torch"
        )
    return "; is the loss a mean over the samples of a batch?"


def _flat(arrays: Arrays) -> NDArray[Any]:
    return np.concatenate([value.astype(np.float64).reshape(-1) for value in arrays.values()])


def mean_loss(seen: Seen) -> Check:
    """Compare the gradients of a batch with those of the same samples twice."""
    claim = "the loss is a mean over the samples: each sample twice, the same gradients"
    single, doubled = _gradients(seen.single), _gradients(seen.doubled)
    if single is None or doubled is None:
        words = seen.errors.get("single") or seen.errors.get("doubled") or seen.no_whole
        return Check("recipe", claim, None, f"not checked: {words}")
    names = [name for name in single if name in doubled]
    once, twice = (_flat({name: each[name] for name in names}) for each in (single, doubled))
    sizes = float(np.linalg.norm(once)), float(np.linalg.norm(twice))
    if not sizes[0]:
        return Check("recipe", claim, None, "not checked: the first gradients are zero")
    factor = sizes[1] / sizes[0]
    log = seen.single
    summed = bool(log and log.reductions and log.reductions[0].reduction == "sum")
    due = 2.0 if summed else 1.0
    random = seen.fact("random")
    limit = 0.4 if random else 0.05
    words = f"{factor:.3g} times the gradients, {due:g} is due; limit {limit:g}" + (
        " (random numbers)" if random else ""
    )
    if abs(factor - due) > limit:
        advice = "; is the loss a sum? take the mean" if factor > due else ""
        return Check("recipe", claim, False, words + advice, abs(factor - due), limit, update=1)
    return Check("recipe", claim, True, words, abs(factor - due), limit)


def _gradients(log: ScriptLog | None) -> Arrays | None:
    return log.reductions[0].arrays("local") if log is not None and log.reductions else None
