"""Random numbers: each rank draws its own, in every update."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from hvdkit.tools.verification.report import Check
from hvdkit.tools.verification.runs import Runs

_SHARED = "python and numpy"


def random_contract(seen: Runs) -> Iterator[Check]:
    """Ranks' generators stand apart at every update, and move wherever training draws."""
    if not (seen.random or seen.dropout):
        return
    claim = "random state stays each rank's own, at every update"
    # generators that a model keeps are seeded by the user
    names = [name for name in seen.ranks[0].at(0).generators if name != _SHARED and not name.startswith("generator ")]
    if not names:
        yield Check("broadcast", claim, None, "not made: Keras 2 hides it")
        return
    for update in range(seen.updates + 1):
        states = [log.at(update).generators for log in seen.ranks]
        for name in names:
            if len({state.get(name) for state in states}) < len(states):
                where = f"after update {update}" if update else "before the first update"
                found = f"{name}: the same on several ranks {where}: their dropout masks are copies"
                yield Check("broadcast", claim, False, found, parameter=name, update=update)
                return
    yield Check("broadcast", claim, True, "different on all ranks")
    if seen.random or seen.replayed:
        yield _drawn(seen, names)


def _drawn(seen: Runs, names: list[str]) -> Check:
    """Check that what draws in the first update draws in all: in evaluation mode nothing does."""
    claim = "every update draws random numbers, as in training mode"
    for rank, log in enumerate(seen.ranks):
        places = [log.at(update).generators for update in range(seen.updates + 1)]
        moving = [name for name in names if places[1].get(name) != places[0].get(name)]
        for update, (before, after) in enumerate(itertools.pairwise(places), 1):
            still = next((name for name in moving if before.get(name) == after.get(name)), None)
            if still is not None:
                found = f"rank {rank}, update {update}: {still} draws nothing; is the model in evaluation mode?"
                return Check("average", claim, False, found, parameter=still, update=update)
        if not moving:
            return Check("average", claim, None, "no generator that can be read has moved")
    return Check("average", claim, True, f"{seen.updates} updates")
