"""What a recipe itself must give, whatever the eight steps make of it."""

from __future__ import annotations

from collections.abc import Iterator

from hvdkit.tools.verification.report import Check
from hvdkit.tools.verification.runs import Runs

_MEAN_LIMIT = 1e-3


def recipe_contract(seen: Runs) -> Iterator[Check]:
    """Every process gets all the data, and the loss of a batch is the mean over its samples."""
    if "data" in seen.twin.facts:
        yield _data(seen)
    yield _mean_loss(seen)


def _data(seen: Runs) -> Check:
    claim = "Recipe.data gives every process the same data"
    due = seen.twin.facts["data"]
    for rank, log in enumerate(seen.ranks):
        if log.facts["data"] != due:
            others = {entry.facts["data"] for entry in seen.ranks}
            found = f"rank {rank} has other data than one process"
            found = "every rank has its own data" if len(others) == len(seen.ranks) else found
            hint = "step 3 takes each rank's part, so give it all, and seed what is drawn"
            return Check("recipe", claim, False, f"{found}; {hint}", parameter="data", update=0)
    return Check("recipe", claim, True, f"{len(seen.ranks)} ranks and one process")


def _mean_loss(seen: Runs) -> Check:
    """Compare the loss of the first global batch with that of its parts, which the same weights have given."""
    claim = "the loss of a batch is the mean over its samples"
    if seen.local_statistics or seen.random or seen.known["synchronised"]:
        return Check("recipe", claim, None, "not made: BatchNorm or random layers see the whole batch in another way")
    parts, joined = seen.twin.facts["losses"][0], seen.whole.facts["losses"][0]
    size = abs(joined - parts) / max(abs(parts), 1e-12)
    if not size <= _MEAN_LIMIT:
        samples = sum(micro.count for log in seen.ranks for micro in log.micros if micro.update == 1)
        found = f"{joined:.6g} for {samples} samples, {parts:.6g} for parts of them; is it a sum? take the mean"
        return Check("recipe", claim, False, found, size, _MEAN_LIMIT, "loss", 1)
    return Check("recipe", claim, True, f"within {size:.0e}", size, _MEAN_LIMIT)
