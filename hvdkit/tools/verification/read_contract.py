"""The contract of step 3 for data that are known by what they give alone, not by the places of their samples."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from hvdkit.tools.verification.given import BATCHES, SHARED, split, steady
from hvdkit.tools.verification.layout import expected_order
from hvdkit.tools.verification.report import Check
from hvdkit.tools.verification.runs import Runs
from hvdkit.tools.verification.storage import Micro

_SHARED = "samples disjoint and complete, those that one process reads"
_BATCHES = "batches disjoint and complete, those of one process"
_ENDLESS = "no sample more often than the data have given it"
_ANEW = "a new order every epoch"
_RANDOM = "samples are random, and nothing tells one from another"
_ORDERS = 10_000
"""Fewer orders than this may come twice by chance."""


def read_contract(seen: Runs, given: dict[str, Any]) -> Iterator[Check]:
    """The samples that ranks were given are those that one process reads."""
    kind = given["kind"]
    claim = _BATCHES if kind == BATCHES else _SHARED
    arrived = _Arrived(given)
    if arrived.all_random:
        yield Check("shard", claim, None, _RANDOM)
    elif kind == BATCHES:
        yield _each_update(seen, arrived, claim, _due_batches(seen, given, arrived))
    elif kind == SHARED:
        yield from _shared(seen, given, arrived)
    else:
        yield from _endless(seen, given, arrived)


class _Arrived:
    """What is compared of samples: what is not random, without what was added."""

    def __init__(self, given: dict[str, Any]) -> None:
        due, self._random = given["due"], frozenset(given["random"])
        first = due[0][0][0] if given["kind"] == BATCHES else due[0]
        self._parts = len(split(first))
        self.all_random = len(self._random) == self._parts
        self.words = ", but for what is random in them" if self._random else ""

    def due(self, samples: Sequence[str]) -> list[str]:
        """Return what is compared of samples that one process reads."""
        return [steady(sample, self._random, self._parts) for sample in samples]

    def of(self, micros: Sequence[Micro]) -> list[str]:
        """Return what is compared of the samples of batches."""
        return self.due([sample for micro in micros for sample in micro.samples])

    def at(self, seen: Runs, update: int) -> list[str]:
        """Return the samples that the ranks were given for an update."""
        return self.of([micro for log in seen.ranks for micro in log.micros if micro.update == update])


def _due_batches(seen: Runs, given: dict[str, Any], arrived: _Arrived) -> list[Counter[str]]:
    """Return the samples due in every update of batches that hvdkit draws by their places."""
    size, found = seen.layout.size, []
    for epoch, batches in enumerate(given["due"]):
        order = expected_order(seen.known, len(batches), epoch)
        for step in range(seen.layout.steps):
            block = order[step * size : (step + 1) * size]
            places = np.resize(block, size) if seen.known["uneven"] == "pad" else block
            found.append(Counter(sample for place in places for sample in arrived.due(batches[place])))
    return found


def _each_update(seen: Runs, arrived: _Arrived, claim: str, due: list[Counter[str]]) -> Check:
    taken = 0
    for update, wanted in enumerate(due, 1):
        here = Counter(arrived.at(seen, update))
        taken += here.total()
        if here != wanted:
            return _apart(claim, f"update {update}", wanted, here, update)
    return Check("shard", claim, True, f"{taken} samples in {seen.layout.epochs} epochs{arrived.words}", 0.0, 0.0)


def _apart(claim: str, where: str, due: Counter[str], here: Counter[str], update: int) -> Check:
    missing, extra = (due - here).total(), (here - due).total()
    found = f"{where}: {missing} of {due.total()} samples missing, {extra} too many"
    return Check("shard", claim, False, found, float(missing + extra), 0.0, None, update)


def _shared(seen: Runs, given: dict[str, Any], arrived: _Arrived) -> Iterator[Check]:
    """Samples are shared out in the order in which they are read, or each rank shuffles its own."""
    due, steps, whole = arrived.due(given["due"]), seen.layout.steps, seen.known["global_batch"]
    # what shuffles itself is read whole, and the ranks take some of it
    blocks = [due[: given["samples"]][step * whole : (step + 1) * whole] for step in range(steps)]
    numbers = [_padded(seen, len(block)) for block in blocks]
    orders = []
    for epoch in range(seen.layout.epochs):
        updates = range(epoch * steps + 1, (epoch + 1) * steps + 1)
        taken = [arrived.at(seen, update) for update in updates]
        orders.append(taken)
        for update, here, number in zip(updates, taken, numbers, strict=True):
            if len(here) != number:
                found = f"update {update}: {len(here)} samples, {number} are due"
                yield Check("shard", _SHARED, False, found, float(abs(len(here) - number)), 0.0, None, update)
                return
        union, every = Counter(sample for each in taken for sample in each), Counter(due)
        repeated = sum(numbers) - sum(map(len, blocks))
        if (union - every).total() > repeated:
            yield _apart(_SHARED, f"epoch {epoch + 1}", every, union, updates[0])
            return
        if seen.known["shuffle"] or not given["ordered"]:
            continue
        for update, each, block in zip(updates, taken, blocks, strict=True):
            if Counter(block) - Counter(each):
                yield _apart(_SHARED, f"update {update}", Counter(block), Counter(each), update)
                return
    found = f"{seen.layout.epochs} epochs of {sum(map(len, blocks))} samples{arrived.words}"
    yield Check("shard", _SHARED, True, found, 0.0, 0.0)
    if seen.known["shuffle"]:
        yield _shuffled(seen, orders)


def _padded(seen: Runs, samples: int) -> int:
    """Return how many samples an update takes: some are repeated under ``pad``."""
    size = seen.layout.size
    return -(-samples // size) * size if seen.known["uneven"] == "pad" else samples


def _shuffled(seen: Runs, orders: list[list[list[str]]]) -> Check:
    possible = math.factorial(len({sample for update in orders[0] for sample in update}) // seen.layout.size)
    if possible ** (seen.layout.size * (len(orders) - 1)) < _ORDERS:
        return Check("shard", _ANEW, True, "too few samples to tell an order from chance")
    if all(order == orders[0] for order in orders[1:]):
        found = f"{len(orders)} epochs have the same order, though Shard(shuffle=True)"
        return Check("shard", _ANEW, False, found, parameter="samples", update=seen.layout.steps + 1)
    return Check("shard", _ANEW, True, f"{len(orders)} epochs")


def _endless(seen: Runs, given: dict[str, Any], arrived: _Arrived) -> Iterator[Check]:
    """Samples of data that begin anew at their end."""
    due, whole = arrived.due(given["due"]), seen.known["global_batch"]
    if given["ordered"] and not seen.known["shuffle"]:
        blocks = [Counter(due[start : start + whole]) for start in range(0, seen.layout.updates * whole, whole)]
        yield _each_update(seen, arrived, _SHARED, blocks)
        return
    for rank, log in enumerate(seen.ranks):
        share = due[rank :: seen.layout.size] if given["ordered"] else due
        extra = Counter(arrived.of(log.micros)) - Counter(share)
        if extra:
            found = f"rank {rank}: {extra.total()} samples that are another rank's, or too many"
            yield Check("shard", _ENDLESS, False, found, float(extra.total()), 0.0, "samples")
            return
    here = Counter(sample for log in seen.ranks for sample in arrived.of(log.micros))
    if here - Counter(due):
        yield _apart(_ENDLESS, "all updates", Counter(due), here, seen.layout.updates)
        return
    yield Check("shard", _ENDLESS, True, f"{here.total()} samples{arrived.words}", 0.0, 0.0)
    reason = "data of unknown number are shuffled in a buffer without an end, where a sample may wait for any time"
    yield Check("shard", "no sample of the data is left out", None, reason)


def evaluated_once(claim: str, given: dict[str, Any], micros: Sequence[Micro]) -> Check:
    """All samples that one process reads are evaluated, each once."""
    arrived = _Arrived(given)
    if arrived.all_random:
        return Check("shard", claim, None, _RANDOM)
    due, here = Counter(arrived.due(given["due"])), Counter(arrived.of(micros))
    some = due.total() if given["samples"] is None else min(due.total(), given["samples"])
    if here - due or here.total() != some:
        return _apart(claim, "an evaluation", due, here, micros[0].update)
    return Check("shard", claim, True, f"{here.total()} samples{arrived.words}", 0.0, 0.0)
