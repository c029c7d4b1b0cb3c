"""The contracts of steps 1 to 4 and 6, each at its own boundary."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from hvdkit.process.environment import user_set_threads
from hvdkit.tools.verification.distances import amount, largest
from hvdkit.tools.verification.report import Check
from hvdkit.tools.verification.runs import Runs

_RATE_LIMIT = 1e-6


def init_contract(seen: Runs) -> Check:
    """Every process is one of N ranks."""
    claim = "N processes know each other as ranks 0 to N-1"
    size = seen.layout.size
    places = [(log.facts["rank"], log.facts["size"]) for log in seen.ranks]
    good = places == [(rank, size) for rank in range(size)]
    nodes = len({log.facts["node"] for log in seen.ranks})
    found = f"{size} ranks on {nodes} node(s)" if good else f"ranks and sizes are {places}"
    return Check("init", claim, good, found)


def pin_contract(seen: Runs) -> Check:
    """No two ranks of a node share a GPU, and their threads do not outnumber its cores."""
    claim = "one device for each rank, by local rank; threads shared"
    for log in seen.ranks:
        facts = log.facts
        kind, _, index = facts["device"].lower().partition(":")
        if kind in ("cuda", "gpu") and int(index or 0) != facts["local_rank"]:
            return Check("pin", claim, False, f"rank {facts['rank']} is local rank {facts['local_rank']} on {index}")
        cores = len(os.sched_getaffinity(0))
        fair = seen.known["shared_threads"] and not user_set_threads() and facts["local_size"] > 1
        if fair and facts["threads"] * facts["local_size"] > max(cores, facts["local_size"]):
            found = f"{facts['local_size']} ranks with {facts['threads']} threads each on {cores} cores"
            return Check("pin", claim, False, f"rank {facts['rank']}: {found}", size=float(facts["threads"]))
    threads = [f"{log.facts['threads']} threads" if log.facts["threads"] else "threads not set" for log in seen.ranks]
    devices = ", ".join(f"{log.facts['device']} ({text})" for log, text in zip(seen.ranks, threads, strict=True))
    return Check("pin", claim, True, devices)


def broadcast_contract(seen: Runs) -> Iterator[Check]:
    """All ranks start from one state, which is what one process starts from."""
    starts = [log.at(0) for log in seen.ranks]
    claim = "one state on all ranks before the first update"
    for rank, start in enumerate(starts[1:], 1):
        for group, names in starts[0].digests.items():
            for name in [*names, *start.digests[group]]:
                if names.get(name) != start.digests[group].get(name):
                    size = largest(starts[0].arrays(group), start.arrays(group), name)
                    found = f"{name} of rank {rank} differs from rank 0's {amount(size)} before the first update"
                    if "broadcast" in seen.known["off"]:
                        found += "; Recipe.broadcast is None: give hvdkit.Broadcast()"
                    yield Check("broadcast", claim, False, found, size, 0.0, name, 0)
                    return
    yield Check("broadcast", claim, True, "bit for bit the same" + _disturbed(seen), 0.0, 0.0)
    yield _as_alone(seen)
    if seen.random or seen.dropout:
        states = [log.facts["random"] for log in seen.ranks]
        if "" in states:
            yield Check("broadcast", "random state stays each rank's own", None, "not made: Keras 2 hides it")
            return
        own = len(set(states)) == len(states)
        found = "different on all ranks" if own else "the same on several ranks: their dropout masks are copies"
        yield Check("broadcast", "random state stays each rank's own", own, found)


def _disturbed(seen: Runs) -> str:
    return ", though ranks were given different weights" if "broadcast" not in seen.known["off"] else ""


def _as_alone(seen: Runs) -> Check:
    claim = "it is the state that one process starts from"
    if seen.twin.facts["fresh"] != seen.whole.facts["fresh"]:
        return Check("broadcast", claim, None, "the model is built differently each time; nothing to compare with")
    start = seen.ranks[0].at(0).digests
    for group, names in seen.twin.facts["fresh"].items():
        extra = [name for name in start[group] if name not in names] if group != "slots" else []
        for name in [*names, *extra]:
            if name in start[group] and names.get(name) != start[group][name] and not _is_position(name):
                found = f"{name} differs from what one process starts from"
                return Check("broadcast", claim, False, found, None, 0.0, name, 0)
    moved = [name for name in start["slots"] if not seen.twin.facts["fresh"]["slots"] and not _is_position(name)]
    if moved:
        return Check("broadcast", claim, False, "the optimizer has done a step already", None, 0.0, moved[0], 0)
    return Check("broadcast", claim, True, "bit for bit the same", 0.0, 0.0)


def _is_position(name: str) -> bool:
    return "learning_rate" in name


def shard_contract(seen: Runs) -> Iterator[Check]:
    """The ranks' samples of each update are those that one process would take."""
    claim = "samples disjoint and complete, those of one process"
    done = [log.facts["updates"] for log in seen.ranks]
    if set(done) != {seen.layout.updates}:
        found = f"{done} updates on the ranks, {seen.layout.updates} are due"
        yield Check("shard", claim, False, found, float(min(done)), float(seen.layout.updates), None, min(done))
        return
    if "samples" not in seen.twin.facts:
        yield Check("shard", claim, None, "a data set of your own: which samples are due is not known")
    else:
        yield _samples(seen, claim)
    yield _weights(seen)


def _samples(seen: Runs, claim: str) -> Check:
    digests = np.array(seen.twin.facts["samples"])
    taken = 0
    for update in range(1, seen.layout.updates + 1):
        epoch, step = divmod(update - 1, seen.layout.steps)
        due = Counter(digests[_due(seen, len(digests), epoch, step)].tolist())
        seen_here: Counter[str] = Counter()
        for log in seen.ranks:
            for micro in log.micros:
                if micro.update == update:
                    seen_here.update(micro.samples)
        taken += sum(seen_here.values())
        if seen.known["uneven"] == "pad":
            due, seen_here = Counter(set(due)), Counter(set(seen_here))
        if due != seen_here:
            missing, extra = sum((due - seen_here).values()), sum((seen_here - due).values())
            found = f"update {update}: {missing} of {sum(due.values())} samples missing, {extra} too many"
            return Check("shard", claim, False, found, float(missing + extra), 0.0, None, update)
    return Check("shard", claim, True, f"{taken} samples in {seen.layout.epochs} epochs", 0.0, 0.0)


def _due(seen: Runs, samples: int, epoch: int, step: int) -> NDArray[np.int64]:
    order = np.arange(samples)
    if seen.known["shuffle"]:
        order = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seen.known["seed"], epoch]))).permutation(
            samples
        )
    whole = seen.known["global_batch"]
    return order[step * whole : (step + 1) * whole]


def _weights(seen: Runs) -> Check:
    """Check what each batch counts for, where the framework shows it."""
    claim = "a short batch counts for its samples"
    short = 0
    for update in range(1, seen.layout.updates + 1):
        parts = [[micro for micro in log.micros if micro.update == update] for log in seen.ranks]
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
    return Check("shard", claim, True, f"{short} short batches" if short else "no short batch in these data", 0.0, 1e-6)


def rate_contract(seen: Runs) -> Check:
    """Every update has the learning rate of the plan."""
    claim = "the learning rate of the global batch, with warm-up and schedule"
    rates = seen.twin.facts["rates"]
    for rank, log in enumerate(seen.ranks):
        for snapshot in log.snapshots[1:]:
            due = rates[snapshot.update - 1] if snapshot.update <= len(rates) else math.nan
            if not math.isclose(snapshot.rate, due, rel_tol=_RATE_LIMIT):
                found = f"rank {rank}, update {snapshot.update}: {snapshot.rate:g}, the plan says {due:g}"
                if math.isclose(snapshot.rate, due * seen.layout.size, rel_tol=_RATE_LIMIT):
                    found += f"; {seen.layout.size} times too much: give the rate of one process, step 4 scales it"
                size = abs(snapshot.rate - due)
                return Check("scale_lr", claim, False, found, size, _RATE_LIMIT, "learning rate", snapshot.update)
    return Check("scale_lr", claim, True, f"{rates[0]:g} at first, {rates[-1]:g} at last", 0.0, _RATE_LIMIT)
