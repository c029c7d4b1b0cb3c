"""What one process would be given, so that what the ranks were given can be held against it."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hvdkit.recipe.declaration import Data, Recipe
from hvdkit.recipe.trees import leaves, map_tree
from hvdkit.tools.verification.layout import Layout, accumulate, global_batch, is_neutral
from hvdkit.tools.verification.storage import Log, Micro, digest, sample_digests

if TYPE_CHECKING:
    from hvdkit.tools.verification.framework_view import View

ARRAYS, PLACES, DRAWN, STREAM, UNKNOWN = "arrays", "places", "drawn", "stream", "unknown"
SHARED, ENDLESS, BATCHES = "shared", "endless", "batches"
READ = (SHARED, ENDLESS, BATCHES)

_WIDTH = len(digest(np.zeros(1)))
ANY = "?" * _WIDTH
"""Stands for a part of a sample that comes out differently each time it is loaded."""

_AGAIN = 30
_SOME = 32


@dataclass(frozen=True)
class Given:
    """What data are.

    Attributes:
        kind: ``arrays``; ``places``: samples by place, in hvdkit's order; ``drawn``: by place, in the order of a
            sampler; ``stream``; ``shared``: samples that ranks share out as they read them; ``endless``: the same of
            data that begin anew at their end; ``batches``: made by the user, in hvdkit's order; or ``unknown``.
        samples: How many; None if they do not say it.
        shuffle, uneven: What a loader of the user's asks for; None leaves it to the recipe.
    """

    kind: str
    samples: int | None = None
    shuffle: bool | None = None
    uneven: str | None = None


def given(view: View, data: Any) -> Given:
    """Say what data are."""
    if is_neutral(data):
        return Given(ARRAYS, len(next(leaves(data))))
    return view.given(data)


def identity(view: View, data: Data) -> str | None:
    """Return a digest of data, the same in every process that has the same; None where nothing can be known."""
    parts = [_identity(view, part) for part in (data.train, data.validation) if part is not None]
    return None if None in parts else " ".join(map(str, parts))


def _identity(view: View, data: Any) -> str | None:
    if is_neutral(data):
        return " ".join(digest(_array(view, leaf)) for leaf in leaves(data))
    found = view.given(data)
    if found.kind == UNKNOWN:
        return None
    if found.kind == ARRAYS:
        return " ".join(digest(_array(view, leaf)) for leaf in leaves(data))
    if found.kind in READ:
        return f"{found.kind} {found.samples}"
    try:
        first, second = (_some(view, data, found) for _ in range(2))
    except Exception:  # noqa: BLE001 - code of the user's, which may need a worker of a loader
        return None
    steady = [sample if sample == other else ANY for sample, other in zip(first, second, strict=True)]
    return f"{found.samples} {hashlib.blake2b(repr(steady).encode(), digest_size=12).hexdigest()}"


def _some(view: View, data: Any, found: Given) -> list[str]:
    """Return digests of some samples, each loaded with the same random numbers in every process."""
    with view.generators_at(0):
        if found.samples is None:
            samples = view.read(data, _SOME, 0)
        else:
            places = sorted({int(place) for place in np.linspace(0, found.samples - 1, _SOME)})
            samples = [view.load(data, [place])[0] for place in places]
        return [sample for each in samples for sample in _digests(view, *view.collate(data, [each]))]


def note_given(view: View, log: Log, name: str, data: Any, batches: list[list[Micro]], recipe: Recipe) -> None:
    """Note as a fact ``given_`` and ``name`` what the samples of the ranks' batches are where one process loads them.

    Args:
        view: Of the framework.
        log: Gets the fact.
        name: ``train`` or ``validation``.
        data: Those of the run, or None.
        batches: What each rank took.
        recipe: Whose data they are.
    """
    if data is None:
        return
    found = given(view, data)
    if found.kind in READ:
        return
    due: Any = None
    reason = "" if found.kind != UNKNOWN else f"verify cannot load single samples of a {type(data).__name__}"
    try:
        due = _due(view, data, found, batches, recipe, name == "train")
    except Exception as error:  # noqa: BLE001 - code of the user's, which may need a worker of a loader
        reason = f"one process cannot load them: {type(error).__name__}: {error}"
    trials = [view.drawn_order(data) for _ in range(2)] if found.kind == DRAWN else None
    log.facts[f"given_{name}"] = {
        "kind": found.kind,
        "samples": found.samples,
        "due": due,
        "reason": reason,
        "trials": trials,
    }


def note_read(
    view: View, log: Log, name: str, data: Any, anew: Callable[..., Any], recipe: Recipe, layout: Layout
) -> None:
    """Note the same of data that are known by what they give alone.

    Args:
        view: Of the framework.
        log: Gets the fact.
        name: ``train`` or ``validation``.
        data: Those of the run, or None.
        anew: Makes them anew.
        recipe: Whose data they are.
        layout: Of the run.
    """
    found = Given(UNKNOWN) if data is None else given(view, data)
    if found.kind not in READ:
        return
    fact: dict[str, Any] = {"kind": found.kind, "samples": found.samples, "due": None, "reason": ""}
    try:
        fact |= view.read_given(anew, found, recipe, layout, name == "train")
    except Exception as error:  # noqa: BLE001 - code of the user's
        fact["reason"] = f"one process cannot load them: {type(error).__name__}: {error}"
    log.facts[f"given_{name}"] = fact


def _due(view: View, data: Any, found: Given, batches: list[list[Micro]], recipe: Recipe, train: bool) -> Any:
    """Return digests: of arrays by place; else of every sample of every batch, by rank; of a stream by update."""
    if found.kind == ARRAYS:
        inputs, targets = (map_tree(functools.partial(_array, view), side) for side in view.sides(data))
        return sample_digests(inputs, targets)
    if found.kind in (PLACES, DRAWN):
        return [[_reloaded(view, data, micro) for micro in micros] for micros in batches]
    if found.kind == STREAM:
        passes = accumulate(recipe) if train else 1
        last = max(micro.update for micro in batches[0])
        evaluated = [micro.count for micros in batches for micro in micros if micro.epoch == batches[0][0].epoch]
        total = last * global_batch(recipe, len(batches)) if train else sum(evaluated)
        parts = _parts(total, len(batches), recipe.batch_size, passes)
        return [_read(view, data, parts, total, recipe.seed + start, train) for start in (0, 1)]
    return None


def _parts(total: int, size: int, batch: int, passes: int) -> list[list[list[int]]]:
    """Return the places of a stream's samples by update and batch: rank r takes every size-th of a global batch."""
    whole = size * batch * passes
    blocks = [range(start, min(start + whole, total)) for start in range(0, total, whole)]
    return [
        [
            part
            for rank in range(size)
            for number in range(passes)
            if (part := list(block[rank::size][number * batch : (number + 1) * batch]))
        ]
        for block in blocks
    ]


def _array(view: View, leaf: Any) -> Any:
    return leaf if isinstance(leaf, np.ndarray) else view.neutral(view.array(leaf))


def _reloaded(view: View, data: Any, micro: Micro) -> list[str]:
    """Load a batch anew, and again if it is not what arrived, to learn which parts of its samples are random."""
    if not micro.indices:
        return []
    first = _loaded(view, data, micro.indices)
    random: set[int] = set()
    for _ in range(_AGAIN if first != micro.samples else 0):
        random |= _apart(first, _loaded(view, data, micro.indices))
    return [_masked(row, random) for row in first]


def _loaded(view: View, data: Any, places: Sequence[int]) -> list[str]:
    return _digests(view, *view.collate(data, view.load(data, list(places))))


def _digests(view: View, inputs: Any, targets: Any) -> list[str]:
    return sample_digests(map_tree(view.neutral, inputs), targets)


def _read(view: View, data: Any, parts: list[list[list[int]]], total: int, seed: int, train: bool) -> list[list[str]]:
    """Read a stream; a training stream goes on anew at its end, others must be at their end."""
    samples = view.read(data, total if train else None, seed)
    if len(samples) != total:
        return [[f"{len(samples)} samples"]]
    updates = []
    for update in parts:
        pairs = [view.collate(data, [samples[place] for place in part]) for part in update]
        updates.append([sample for pair in pairs for sample in _digests(view, *pair)])
    return updates


def _apart(first: list[str], second: list[str]) -> set[int]:
    """Return the parts in which any two samples differ."""
    return {
        part
        for left, right in zip(first, second, strict=True)
        for part, (mine, other) in enumerate(zip(split(left), split(right), strict=True))
        if mine != other
    }


def split(sample: str) -> list[str]:
    """Return the digests of the parts of a sample."""
    return [sample[start : start + _WIDTH] for start in range(0, len(sample), _WIDTH)]


def _masked(sample: str, random: set[int]) -> str:
    return "".join(ANY if place in random else part for place, part in enumerate(split(sample)))


def steady(sample: str, random: Collection[int], parts: int | None = None) -> str:
    """Return what of a sample is not random; ``parts`` leaves out what was added to it, such as weights."""
    return "".join(part for place, part in enumerate(split(sample)[:parts]) if place not in random)


def is_like(due: str, arrived: str) -> bool:
    """Say whether the sample that arrived may be the one that is due: those of its parts that are not random are."""
    parts, others = split(due), split(arrived)
    return len(parts) == len(others) and all(part in (ANY, other) for part, other in zip(parts, others, strict=True))


def is_random(due: str) -> bool:
    """Say whether nothing of a sample comes out the same each time it is loaded."""
    return set(split(due)) == {ANY}
