"""Who keeps the others waiting: decided from what watchers tell, without a clock or a connection of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

LEFT_SECONDS = 5.0
"""So long a rank waits for one that has left."""

MISMATCH_SECONDS = 5.0
"""So long two ranks wait in different collectives."""

ASK_SECONDS = 10.0
"""So often a rank that others wait for is asked where it is."""

STOPPED = "stopped by a signal"
"""The place of a rank that cannot go on, even where it waits as the others do."""

ANSWER_SECONDS = 5.0
"""So long an answer is waited for before a late rank is named without its place."""


@dataclass(frozen=True)
class Limits:
    """How long ranks may wait for another, in seconds.

    Attributes:
        report: Until the one that is late is named.
        stuck: Until one that has been in the same place all the time ends the job.
    """

    report: float = 60.0
    stuck: float = 600.0


@dataclass(frozen=True)
class End:
    """All ranks must end because of one."""

    rank: int
    message: str


@dataclass(frozen=True)
class Ask:
    """A rank must be asked where it is."""

    rank: int


@dataclass(frozen=True)
class Report:
    """Something is to be said once."""

    text: str


Verdict = End | Ask | Report


@dataclass
class _Rank:
    wait: tuple[int, str] | None = None
    since: float = 0.0
    left: float | None = None
    place: str = ""
    stack: str = ""
    moved: float = 0.0
    asked: float = float("-inf")
    answered: float = float("-inf")

    def place_since(self, when: float) -> str:
        """Return where it is; empty if it has not been asked since then: it may have gone elsewhere."""
        return self.place if self.answered >= when else ""


@dataclass
class Judge:
    """What is known of every rank.

    Attributes:
        size: Ranks.
        limits: How long they may wait.
    """

    size: int
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        self._ranks = [_Rank() for _ in range(self.size)]
        self._reported = 0

    def waits(self, rank: int, number: int, what: str, since: float) -> None:
        """Note that a rank waits."""
        entry = self._ranks[rank]
        entry.wait, entry.since = (number, what), since
        entry.place = entry.stack = ""

    def goes_on(self, rank: int, now: float) -> None:
        """Note that it does no longer."""
        entry = self._ranks[rank]
        entry.wait, entry.moved = None, now

    def leaves(self, rank: int, now: float) -> None:
        """Note that a rank has finished its part."""
        self._ranks[rank].left = now

    def has_left(self, rank: int) -> bool:
        """Say whether it has."""
        return self._ranks[rank].left is not None

    def is_at(self, rank: int, place: str, stack: str, now: float) -> None:
        """Note where a rank is."""
        entry = self._ranks[rank]
        if stack != entry.stack:
            entry.stack, entry.moved = stack, now
        entry.place, entry.answered = place, now

    def was_away(self, now: float) -> None:
        """Begin to count anew: this process was stopped, and perhaps the others with it."""
        for entry in self._ranks:
            entry.since, entry.moved = max(entry.since, now), now
            entry.left = None if entry.left is None else now

    def look(self, now: float) -> Iterator[Verdict]:
        """Return what follows from what is known."""
        found = self._mismatch(now) or self._waits_for_one_that_left(now)
        if found is not None:
            yield found
        elif not any(entry.left for entry in self._ranks):
            yield from self._late(now)

    def broken_by(self, rank: int, what: str) -> End | None:
        """Return why a wait of a rank has failed at once, if another has left."""
        left = next((other for other, entry in enumerate(self._ranks) if entry.left is not None), None)
        return None if left is None else End(left, f"it has left the job while rank {rank} waits in {what}")

    def _waiting(self) -> Iterator[tuple[int, _Rank, int, str]]:
        for rank, entry in enumerate(self._ranks):
            if entry.wait is not None and entry.left is None:
                yield rank, entry, *entry.wait

    def _mismatch(self, now: float) -> End | None:
        """Two ranks have waited equally often, and wait in different collectives."""
        first: dict[int, tuple[int, str]] = {}
        for rank, entry, number, what in self._waiting():
            if now - entry.since < MISMATCH_SECONDS:
                continue
            other, expected = first.setdefault(number, (rank, what))
            if what != expected:
                return End(
                    rank,
                    f"it waits in {what} while rank {other} waits in {expected}; all ranks must ask for the same "
                    "collectives in the same order",
                )
        return None

    def _waits_for_one_that_left(self, now: float) -> End | None:
        left = [(rank, entry.left) for rank, entry in enumerate(self._ranks) if entry.left is not None]
        for waiting, entry, _, what in self._waiting():
            for rank, when in left:
                if now - max(entry.since, when) > LEFT_SECONDS:
                    return End(rank, f"it has left the job while rank {waiting} waits in {what}")
        return None

    def _late(self, now: float) -> Iterator[Verdict]:
        """Name the ranks for which another waits too long, and end the job if they do not move."""
        longest = min(self._waiting(), key=lambda entry: entry[1].since, default=None)
        soon = min(self.limits.report, self.limits.stuck) / 2
        if longest is None or now - longest[1].since < soon:
            return
        rank, entry, number, what = longest
        late = [other for other in range(self.size) if self._is_late(other, number)]
        asked = late or [other for other in range(self.size) if self._ranks[other].left is None]
        places = {other: self._ranks[other].place_since(entry.since) for other in asked}
        late = late or [other for other in asked if places[other] == STOPPED]
        for other in asked:
            if now - self._ranks[other].asked > min(ASK_SECONDS, soon):
                self._ranks[other].asked = now
                yield Ask(other)
        waited = now - entry.since
        patience = 0.0 if all(places[other] for other in late) else self._patience
        if waited > self.limits.report + patience and self._reported != number and self._agree_on(number, what):
            self._reported = number
            yield Report(f"rank {rank} has waited {waited:.0f} s for other ranks in {what}{_named(late, places)}")
        if waited > self.limits.stuck and all(
            now - max(entry.since, self._ranks[other].moved) > self.limits.stuck for other in late
        ):
            yield self._stuck(rank, what, late, places)

    @property
    def _patience(self) -> float:
        """So long an answer is waited for: a late rank is named before it ends the job."""
        return min(ANSWER_SECONDS, max(0.0, self.limits.stuck - self.limits.report) / 2)

    def _agree_on(self, number: int, what: str) -> bool:
        return all(entry.wait is None or entry.wait[0] != number or entry.wait[1] == what for entry in self._ranks)

    def _is_late(self, rank: int, number: int) -> bool:
        entry = self._ranks[rank]
        return entry.left is None and (entry.wait is None or entry.wait[0] < number)

    def _stuck(self, waiting: int, what: str, late: list[int], places: dict[int, str]) -> End:
        seconds = f"{self.limits.stuck:.0f} s"
        if not late:
            return End(waiting, f"it has waited {seconds} in {what}, as all ranks have")
        place = places[late[0]]
        where = f"; it is {place}" if place else ""
        return End(late[0], f"it has not come to {what}, where rank {waiting} has waited {seconds}{where}")


def _named(late: list[int], places: dict[int, str]) -> str:
    if not late:
        return "; all ranks wait there"
    named = [f"rank {rank} is {places[rank] or 'late'}" for rank in late[:3]]
    return f"; {', '.join(named)}{f' and {len(late) - 3} more are late' if len(late) > 3 else ''}"
