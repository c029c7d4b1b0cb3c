"""The contracts of steps 1 to 4 and 6, each at its own boundary."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator

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


def rate_contract(seen: Runs) -> Check:
    """Every update has the learning rate of the plan, in every group of parameters."""
    claim = "the learning rate of the global batch, with warm-up and schedule"
    rates = seen.twin.facts["rates"]
    for rank, log in enumerate(seen.ranks):
        for snapshot in log.snapshots[1:]:
            due = rates[snapshot.update - 1] if snapshot.update <= len(rates) else [math.nan]
            where = f"rank {rank}, update {snapshot.update}"
            if len(snapshot.rates) != len(due):
                found = f"{where}: {len(snapshot.rates)} groups of parameters, one process has {len(due)}"
                return Check("scale_lr", claim, False, found, None, None, "learning rate", snapshot.update)
            for group, (found_rate, wanted) in enumerate(zip(snapshot.rates, due, strict=True)):
                if not math.isclose(found_rate, wanted, rel_tol=_RATE_LIMIT):
                    place = where if len(due) == 1 else f"{where}, group {group}"
                    return _wrong_rate(seen, claim, place, found_rate, wanted, snapshot.update)
    groups = "" if len(rates[0]) == 1 else f", in {len(rates[0])} groups of parameters"
    found = f"{rates[0][0]:g} at first, {rates[-1][0]:g} at last{groups}"
    return Check("scale_lr", claim, True, found, 0.0, _RATE_LIMIT)


def _wrong_rate(seen: Runs, claim: str, place: str, rate: float, due: float, update: int) -> Check:
    found = f"{place}: {rate:g}, the plan says {due:g}"
    if math.isclose(rate, due * seen.layout.size, rel_tol=_RATE_LIMIT):
        found += f"; {seen.layout.size} times too much: give the rate of one process, step 4 scales it"
    return Check("scale_lr", claim, False, found, abs(rate - due), _RATE_LIMIT, "learning rate", update)
