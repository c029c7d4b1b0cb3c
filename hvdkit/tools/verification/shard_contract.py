"""The contract of step 3: which samples the ranks were given, and what each batch counts for."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvdkit.tools.verification.given import ARRAYS, DRAWN, PLACES, READ, STREAM, UNKNOWN, is_like, is_random
from hvdkit.tools.verification.layout import expected_order
from hvdkit.tools.verification.read_contract import evaluated_once, read_contract
from hvdkit.tools.verification.report import Check
from hvdkit.tools.verification.runs import Runs
from hvdkit.tools.verification.storage import Micro

_TRAIN = "samples disjoint and complete, those of one process"
_ARRIVED = "what arrived is what the data set gives at these places"
_VALIDATION = "each validation sample once over all ranks"


def shard_contract(seen: Runs) -> Iterator[Check]:
    """The ranks' samples of each update are those that one process would take."""
    done = [log.facts["updates"] for log in seen.ranks]
    if set(done) != {seen.layout.updates}:
        found = f"{done} updates on the ranks, {seen.layout.updates} are due"
        yield Check("shard", _TRAIN, False, found, float(min(done)), float(seen.layout.updates), None, min(done))
        return
    yield from _trained(seen, seen.twin.facts["given_train"])
    yield _weights(seen)
    if "given_validation" in seen.twin.facts:
        yield from _validated(seen, seen.twin.facts["given_validation"])


def _trained(seen: Runs, given: dict[str, Any]) -> Iterator[Check]:
    kind, due = given["kind"], given["due"]
    if kind in READ and due is not None:
        yield from read_contract(seen, given)
    elif kind == ARRAYS:
        yield _by_update(seen, _TRAIN, lambda micro: micro.samples, np.array(due))
    elif kind == PLACES:
        yield _by_update(seen, _TRAIN, lambda micro: micro.indices or [], np.arange(given["samples"]))
    elif kind == DRAWN:
        yield _drawn(seen, given["trials"])
    elif kind == STREAM and due is not None:
        yield _streamed(seen, due)
    else:
        yield Check("shard", _TRAIN, None, given["reason"])
    if kind in (PLACES, DRAWN):
        yield _arrived(given, [log.micros for log in seen.ranks])


def _at(seen: Runs, update: int) -> list[list[Micro]]:
    return [[micro for micro in log.micros if micro.update == update] for log in seen.ranks]


def _by_update(seen: Runs, claim: str, names: Any, by_place: NDArray[Any]) -> Check:
    """Hold the samples of every update against the contract's own order."""
    taken = 0
    for update in range(1, seen.layout.updates + 1):
        epoch, step = divmod(update - 1, seen.layout.steps)
        due = Counter(by_place[_due(seen, len(by_place), epoch, step)].tolist())
        here = Counter(name for micros in _at(seen, update) for micro in micros for name in names(micro))
        taken += here.total()
        if seen.known["uneven"] == "pad" and due.total() < seen.known["global_batch"]:
            due, here = Counter(set(due)), Counter(set(here))
        if due != here:
            return _apart("shard", claim, due, here, update)
    return Check("shard", claim, True, f"{taken} samples in {seen.layout.epochs} epochs", 0.0, 0.0)


def _due(seen: Runs, samples: int, epoch: int, step: int) -> NDArray[np.int64]:
    whole = seen.known["global_batch"]
    return expected_order(seen.known, samples, epoch)[step * whole : (step + 1) * whole]


def _apart(step: str, claim: str, due: Counter[Any], here: Counter[Any], update: int) -> Check:
    missing, extra = (due - here).total(), (here - due).total()
    found = f"update {update}: {missing} of {due.total()} samples missing, {extra} too many"
    return Check(step, claim, False, found, float(missing + extra), 0.0, None, update)


def _drawn(seen: Runs, trials: list[list[int]]) -> Check:
    """Hold what a sampler of the user's drew on rank 0 against what it draws here, as far as that is the same twice."""
    claim = "samples disjoint and complete, those that the sampler draws"
    known = Counter(trials[0]) == Counter(trials[1])
    steps, whole = seen.layout.steps, seen.known["global_batch"]
    for epoch in range(seen.layout.epochs):
        updates = range(epoch * steps + 1, (epoch + 1) * steps + 1)
        taken = [
            [index for micros in _at(seen, update) for micro in micros for index in micro.indices or []]
            for update in updates
        ]
        numbers = [min(whole, len(trials[0]) - step * whole) for step in range(steps)]
        for update, here, number in zip(updates, taken, numbers, strict=True):
            if len(here) != number:
                found = f"update {update}: {len(here)} samples, {number} are due"
                return Check("shard", claim, False, found, float(abs(len(here) - number)), 0.0, None, update)
        union = Counter(index for here in taken for index in here)
        if known and (extra := union - Counter(trials[0])):
            found = f"epoch {epoch + 1}: {extra.total()} samples too many, such as {next(iter(extra))}"
            return Check("shard", claim, False, found, float(extra.total()), 0.0, None, updates[0])
    shares = [[micro.indices for micro in log.micros if micro.count] for log in seen.ranks]
    if shares[0] == shares[-1]:
        return Check("shard", claim, False, "all ranks took the same samples", parameter="samples", update=1)
    words = "" if known else "; the sampler draws others each time, so that gaps are not looked for"
    return Check("shard", claim, True, f"{seen.layout.epochs} epochs{words}", 0.0, 0.0)


def _streamed(seen: Runs, reads: list[list[list[str]]]) -> Check:
    """Hold the samples of every update, or of all of them, against a stream that one process reads."""
    claim = "each sample of the stream once over all ranks, those that one process reads"
    arrived = [
        [sample for micros in _at(seen, update) for micro in micros for sample in micro.samples]
        for update in range(1, seen.layout.updates + 1)
    ]
    return _read(claim, arrived, reads)


def _read(claim: str, arrived: list[list[str]], reads: list[list[list[str]]]) -> Check:
    first, again = reads
    total = sum(map(len, arrived))
    wrong = next(
        (k for k, (due, here) in enumerate(zip(first, arrived, strict=False), 1) if Counter(due) != Counter(here)), None
    )
    if wrong is None and len(first) == len(arrived):
        return Check("shard", claim, True, f"{total} samples", 0.0, 0.0)
    if first == again:
        if wrong is None:
            return Check("shard", claim, False, f"{len(arrived)} batches, {len(first)} are due", parameter="samples")
        return _apart("shard", claim, Counter(first[wrong - 1]), Counter(arrived[wrong - 1]), wrong)
    flat, other, here = (Counter(sample for update in run for sample in update) for run in (first, again, arrived))
    if flat == other:
        if flat == here:
            return Check("shard", claim, True, f"{total} samples in an order that is drawn", 0.0, 0.0)
        return _apart("shard", claim, flat, here, len(arrived))
    return Check("shard", claim, None, "the stream is another one each time it is read")


def _arrived(given: dict[str, Any], batches: list[list[Micro]], claim: str = _ARRIVED) -> Check:
    """Hold what arrived against what one process loads at the same places."""
    if given["due"] is None:
        return Check("shard", claim, None, given["reason"])
    random = looked = 0
    for rank, (micros, loaded) in enumerate(zip(batches, given["due"], strict=True)):
        for micro, due in zip(micros, loaded, strict=True):
            for place, (wanted, sample) in enumerate(zip(due, micro.samples, strict=False)):
                if not is_like(wanted, sample):
                    index = (micro.indices or [])[place]
                    found = f"update {micro.update}, rank {rank}: sample {index} is not what one process loads there"
                    return Check("shard", claim, False, found, None, 0.0, f"sample {index}", micro.update)
                looked += 1
                random += is_random(wanted)
    if looked and random == looked:
        return Check("shard", claim, None, "samples are random, and known by their places alone")
    return Check("shard", claim, True, f"{looked} samples" + (f", {random} of them random" if random else ""))


def _validated(seen: Runs, given: dict[str, Any]) -> Iterator[Check]:
    """Each epoch, the ranks together evaluate every sample once."""
    batches = [log.evaluated for log in seen.ranks]
    if not any(batches):
        yield Check("shard", _VALIDATION, None, "the framework does not show its batches")
        return
    epochs = sorted({micro.epoch for micros in batches for micro in micros})
    for epoch in epochs:
        here = [[micro for micro in micros if micro.epoch == epoch] for micros in batches]
        check = _validated_once(given, here)
        if not check.passed or epoch == epochs[-1]:
            yield check
            break
    if given["kind"] in (PLACES, DRAWN):
        yield _arrived(given, batches, f"{_ARRIVED} (validation)")


def _validated_once(given: dict[str, Any], batches: list[list[Micro]]) -> Check:
    kind, due = given["kind"], given["due"]
    micros = [micro for entries in batches for micro in entries]
    if kind in READ and due is not None:
        return evaluated_once(_VALIDATION, given, micros)
    if kind in (ARRAYS, PLACES, DRAWN):
        wanted: Counter[Any] = Counter(due if kind == ARRAYS else range(given["samples"]))
        if kind == DRAWN:
            wanted = Counter(given["trials"][0])
            if wanted != Counter(given["trials"][1]):
                return Check("shard", _VALIDATION, None, "the sampler draws others each time")
        here = Counter(name for micro in micros for name in (micro.samples if kind == ARRAYS else micro.indices or []))
        if wanted != here:
            return _apart("shard", _VALIDATION, wanted, here, micros[0].update)
        return Check("shard", _VALIDATION, True, f"{here.total()} samples", 0.0, 0.0)
    if kind == UNKNOWN or due is None:
        return Check("shard", _VALIDATION, None, given["reason"])
    flat = [[[sample for update in run for sample in update]] for run in due]
    return _read(_VALIDATION, [[sample for micro in micros for sample in micro.samples]], flat)


def _weights(seen: Runs) -> Check:
    """Check what each batch counts for, where the framework shows it."""
    claim = "a short batch counts for its samples"
    short = 0
    for update in range(1, seen.layout.updates + 1):
        parts = _at(seen, update)
        samples = sum(micro.count for micros in parts for micro in micros)
        for rank, micros in enumerate(parts):
            for micro in micros:
                due = micro.count * len(parts) * len(micros) / samples if samples else math.nan
                short += due != 1.0
                if micro.weight is not None and not math.isclose(micro.weight, due, rel_tol=1e-6, abs_tol=1e-9):
                    found = (
                        f"update {update}, rank {rank}: weight {micro.weight:g} for {micro.count} samples, not {due:g}"
                    )
                    return Check("shard", claim, False, found, abs(micro.weight - due), 1e-6, None, update)
    found = f"{short} short batches" if short else "no short batch in these data"
    if short and any(micro.weight is None for log in seen.ranks for micro in log.micros):
        found += "; fit shows no weights, they show in what updates make"
    return Check("shard", claim, True, found, 0.0, 1e-6)


def own_data(seen: Runs) -> Iterator[str]:
    """Yield what of a data set of the user's own could not be looked at."""
    kind = seen.twin.facts["given_train"]["kind"]
    if kind != ARRAYS:
        places = "" if kind in READ else "by their places and, "
        yield (
            f"a data set of your own: samples are known {places}where they come out the same when they are loaded "
            "twice, by their content"
        )
