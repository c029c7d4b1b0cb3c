"""Who keeps the others waiting on their way into the job, where ranks do not know of each other yet."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from hvdkit.process.arrivals import FIRST_COLLECTIVE, INIT, Gate
from hvdkit.process.watch.judge import LEFT_SECONDS, Limits


@dataclass(frozen=True)
class Absent:
    """A rank because of which the job must end."""

    rank: int
    message: str


class Arrivals:
    """Watches the files that ranks leave (:mod:`hvdkit.process.arrivals`).

    Args:
        folder: Where they are.
        size: Ranks.
        limits: How long ranks may wait for another.
    """

    def __init__(self, folder: Path, size: int, limits: Limits) -> None:
        self._folder, self._size, self._limits = folder, size, limits
        self._reported: set[Gate] = set()
        self._gone_since: dict[int, float] = {}

    def look(self, gone: Iterable[int]) -> str | Absent | None:
        """Return what is to be said, once; or the rank for which nobody waits any longer.

        Args:
            gone: Ranks whose script has ended.
        """
        now = time.time()
        for rank in gone:
            self._gone_since.setdefault(rank, now)
        found = (self._at(gate, now) for gate in (INIT, FIRST_COLLECTIVE))
        return next((each for each in found if each is not None), None)

    def who_left(self, gone: Collection[int]) -> Absent | None:
        """Return the rank that ended where others waited for it; asked once nobody can come late any more.

        Args:
            gone: Ranks whose script has ended without an error.
        """
        for gate in (INIT, FIRST_COLLECTIVE):
            waiting, absent = self._here_and_not(gate)
            left = next((rank for rank in absent if rank in gone), None)
            if waiting and left is not None:
                return _left(left, gate, min(waiting, key=waiting.__getitem__))
        return None

    def _at(self, gate: Gate, now: float) -> str | Absent | None:
        waiting, absent = self._here_and_not(gate)
        if not waiting:
            return None
        first, since = min(waiting.items(), key=lambda entry: entry[1])
        left = next((rank for rank in absent if now - self._gone_since.get(rank, now) > LEFT_SECONDS), None)
        if left is not None:
            return _left(left, gate, first)
        waited = now - since
        if gate.ends and waited > self._limits.stuck:
            who, what = (absent[0], "has not come to") if absent else (first, "cannot leave")
            return Absent(who, f"it {what} {gate.words}, where rank {first} has waited {self._limits.stuck:.0f} s")
        if waited > self._limits.report and gate not in self._reported:
            self._reported.add(gate)
            late = f"rank {', '.join(map(str, absent[:5]))} has not come there" if absent else "all ranks are there"
            return f"rank {first} has waited {waited:.0f} s in {gate.words}; {late}"
        return None

    def _here_and_not(self, gate: Gate) -> tuple[dict[int, float], list[int]]:
        """Return since when ranks wait at a gate, and the ranks that have not come to it."""
        behind = self._with(f"behind-{gate.name}")
        waiting = {rank: since for rank, since in self._with(f"at-{gate.name}").items() if rank not in behind}
        return waiting, [rank for rank in range(self._size) if rank not in waiting and rank not in behind]

    def _with(self, what: str) -> dict[int, float]:
        found = {}
        for path in self._folder.glob(f"{what}-*"):
            try:
                found[int(path.name.rpartition("-")[2])] = path.stat().st_mtime
            except OSError:
                continue
        return found


def _left(rank: int, gate: Gate, first: int) -> Absent:
    return Absent(rank, f"it has ended before {gate.words}, where rank {first} waits for it")
