"""What must be the same on all ranks, as plain values that are compared before training."""

from __future__ import annotations

from typing import Any

from hvdkit.errors import RecipeError
from hvdkit.job.world import World

Facts = dict[str, Any]


def check_alike(world: World, what: str, facts: Facts, problem: str | None = None, remedy: str = "") -> None:
    """Compare facts over ranks; called by all ranks.

    Args:
        world: The job.
        what: What the facts are about, such as ``fit is called``.
        facts: Plain values by their names.
        problem: What this rank has found by itself.
        remedy: What to do about a difference, by the name of the fact or for all of them.

    Raises:
        RecipeError: A rank has a problem, or a fact differs; on every rank, with both values.
    """
    gathered = world.engine.allgather_object((problem, facts))
    for found, _ in gathered:
        if found is not None:
            raise RecipeError(found)
    for rank, (_, others) in enumerate(gathered):
        for name in {**gathered[0][1], **others}:
            first, other = gathered[0][1].get(name), others.get(name)
            if first != other:
                first, other = _distinct(first, other)
                raise RecipeError(f"{what} with {name} {first} on rank 0 but {other} on rank {rank}{remedy}")


def _distinct(first: Any, other: Any) -> tuple[str, str]:
    """Return two values as text; of long ones, the part from where they begin to differ."""
    texts = repr(first), repr(other)
    if max(map(len, texts)) <= _LONGEST:
        return texts
    same = next((i for i, pair in enumerate(zip(*texts, strict=False)) if pair[0] != pair[1]), min(map(len, texts)))
    start = max(0, same - 40)
    return tuple(("…" if start else "") + text[start : start + _LONGEST] for text in texts)  # type: ignore[return-value]


_LONGEST = 160
