"""The contract of step 5: what comes out of a reduction is the mean of what ranks brought."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hvdkit.tools.verification.report import Check
from hvdkit.tools.verification.scripts.job import Reduced
from hvdkit.tools.verification.scripts.seen import Seen

_EPS = {
    "float32": 2.0**-23,
    "float64": 2.0**-52,
    "float16": 2.0**-10,
    "bfloat16": 2.0**-7,
    "fp16": 2.0**-10,
    "bf16": 2.0**-7,
}
# roundings beside those of the sum over ranks: weights, accumulated passes, division
_PASSES = 8
# below this 16 bits lose digits
_SMALL = {"fp16": 1e-7, "float16": 1e-7}


def gradients(seen: Seen) -> Iterator[Check]:
    """Yield one check over all reductions."""
    claim = "reduced gradients are the mean of the ranks' own, of each sample once"
    columns = [log.reductions for log in seen.ranks]
    number = min(len(column) for column in columns)
    if not number:
        yield Check("distribute", claim, None, "not checked: no gradients were seen before their reduction")
        return
    worst = 0.0
    for place in range(number):
        row = [column[place] for column in columns]
        found = _worst(row)
        if found is None:
            continue
        name, share, size = found
        worst = max(worst, share)
        if not share <= 1.0:
            words = f"reduction {place + 1}: {name} is {size:.1e} off, {share:.1e} of what rounding can do"
            yield Check("distribute", claim, False, words, share, 1.0, name, place + 1)
            return
    words = f"{number} reductions, at most {worst:.2f} of what rounding can do; limit: those of the sum"
    yield Check("distribute", claim, True, words, worst, 1.0)


def _worst(row: list[Reduced]) -> tuple[str, float, float] | None:
    """Return the gradient that is furthest from the mean, as a share of the rounding of its terms, and how far."""
    local, before, after = ([each.arrays(group) for each in row] for group in ("local", "before", "after"))
    size, first = len(row), row[0]
    divisor = 1.0 if first.reduction == "sum" else sum(each.count for each in row) or 1.0
    eps = _EPS.get(first.wire, 2.0**-23)
    worst: tuple[str, float, float] | None = None
    for name, value in after[0].items():
        terms = [each[name].astype(np.float64) / divisor for each in local if name in each]
        held = [each[name].astype(np.float64) for each in before if name in each]
        if not terms and not held:
            continue
        base = sum(held) / len(held) if held else 0.0
        due = base + sum(terms, np.zeros(value.shape))
        scale = np.abs(base) + sum((np.abs(term) for term in terms), np.zeros(value.shape))
        limit = (size + _PASSES) * eps * scale + _SMALL.get(first.wire, 0.0) + np.finfo(np.float32).tiny
        with np.errstate(invalid="ignore"):
            error = np.abs(value.astype(np.float64) - due)
        error = np.where(np.isnan(error) & ~np.isfinite(due), 0.0, error)
        share = float(np.max(error / limit, initial=0.0))
        share = share if np.isfinite(share) else float("inf")
        if worst is None or share > worst[1]:
            worst = name, share, float(np.max(np.nan_to_num(error, nan=np.inf), initial=0.0))
    return worst
