"""What a recipe itself must give, whatever the eight steps make of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from hvdkit.tools.verification.given import READ
from hvdkit.tools.verification.outcomes import GROUPS, follows
from hvdkit.tools.verification.report import Check
from hvdkit.tools.verification.rounding import TERMS
from hvdkit.tools.verification.runs import Runs


def recipe_contract(seen: Runs) -> Iterator[Check]:
    """Every process gets all the data, and the loss of a batch is the mean over its samples."""
    yield _data(seen)
    yield _mean_loss(seen)
    yield from _parts_make_the_whole(seen)


def _data(seen: Runs) -> Check:
    claim = "Recipe.data gives every process the same data"
    due = seen.twin.facts["data"]
    if due is None:
        return Check("recipe", claim, None, "verify cannot load single samples of these data")
    for rank, log in enumerate(seen.ranks):
        if log.facts["data"] != due:
            others = {entry.facts["data"] for entry in seen.ranks}
            found = f"rank {rank} has other data than one process"
            found = "every rank has its own data" if len(others) == len(seen.ranks) else found
            hint = "step 3 takes each rank's part, so give it all, and seed what is drawn"
            return Check("recipe", claim, False, f"{found}; {hint}", parameter="data", update=0)
    known = "; samples are known by what arrives" if seen.twin.facts["given_train"]["kind"] in READ else ""
    return Check("recipe", claim, True, f"{len(seen.ranks)} ranks and one process{known}")


def _mean_loss(seen: Runs) -> Check:
    """Compare the loss of batches with that of their parts, of the same outputs."""
    claim = "the loss of a batch is the mean over its samples"
    limit = TERMS * float(np.finfo(seen.layout.dtype).eps)
    source = f"{TERMS} eps, for a sum of losses in another order"
    made = seen.probes
    if not made:
        reasons = [probe for probe in seen.whole.facts["probes"] if isinstance(probe, str)]
        return Check("recipe", claim, None, f"not made: {[*reasons, 'there was no update'][0]}")
    furthest = 0.0
    for number, probe in enumerate(made, 1):
        joined, parts = probe["joined"]["loss"], probe["parts"]["loss"]
        parts = parts if probe["weighted"] is None else probe["weighted"]
        size = abs(joined - parts) / max(probe["scale"]["loss"], 1e-30)
        if not size <= limit:
            found = (
                f"{joined:.6g} for {probe['samples']} samples, {parts:.6g} for parts of them; is it a sum? take the "
                "mean; is it the mean over what a mask or weights let count? divide by the samples"
            )
            return Check("recipe", claim, False, found, size, limit, "loss", number, source)
        furthest = max(furthest, size)
    weighted = any(probe["weighted"] is not None for probe in made)
    found = f"within {furthest:.0e} on {len(made)} batches{', by what masks or weights leave' * weighted}"
    return Check("recipe", claim, True, found, furthest, limit, source=source)


def _parts_make_the_whole(seen: Runs) -> Iterator[Check]:
    """Compare training on the ranks' batches one by one with training on all their samples at once."""
    if seen.known["synchronised"] or seen.local_statistics or seen.random or seen.weighs_classes:
        return
    unjoined = seen.whole.facts["unjoined"]
    if unjoined:
        yield Check("recipe", "training on global batches is training on their parts", None, unjoined)
        return
    for group, what in GROUPS.items():
        claim = f"{what} of training on global batches are those of training on their parts, but for rounding"
        found = follows(seen, seen.parts, seen.whole, group, Check("recipe", claim, True, ""))
        if found.passed is False:
            hint = "; the loss of a batch is not the mean over its samples, or the model looks at them together"
            found = dataclasses.replace(found, found=found.found + hint)
        yield found
