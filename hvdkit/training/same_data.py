"""Looks whether all ranks were given the same data, by their length and some samples."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from hvdkit.errors import DataError
from hvdkit.job.world import World
from hvdkit.recipe.trees import leaves, of_arrays, samples_of

SAMPLES = 8


def check_same_data(world: World, length: int | None, sample: Callable[[list[int]], Iterable[Any]]) -> None:
    """Compare the data over ranks; called by all ranks.

    Args:
        world: The job.
        length: Of the data; None where it is not known.
        sample: Returns the samples at some places, each a tree of arrays, numbers or strings. It is asked twice, and
            samples that are not the same both times, such as augmented ones, are left out.

    Raises:
        DataError: Ranks hold other data, or in another order; on every rank.
    """
    if world.size == 1 or not world.guard:
        return
    _check_lengths(world, length)
    if not length:
        return
    places = _places(length)
    _check_samples(world, places, _digests(sample(places)), _digests(sample(places)))


def check_same_start(world: World, length: int | None, first: Callable[[], Iterable[Any]]) -> None:
    """Compare the first samples of data that have no places over ranks; called by all ranks.

    Args:
        world: The job.
        length: Of the data; None where it is not known.
        first: Returns the first few samples; see :func:`check_same_data`.

    Raises:
        DataError: Ranks hold other data, or in another order; on every rank.
    """
    if world.size == 1 or not world.guard:
        return
    _check_lengths(world, length)
    found = _digests(first())
    _check_lengths(world, len(found))
    _check_samples(world, list(range(len(found))), found, _digests(first()))


def _check_lengths(world: World, length: int | None) -> None:
    lengths = world.engine.allgather_object(length)
    for rank, other in enumerate(lengths):
        if other != lengths[0]:
            raise DataError(
                f"data: {lengths[0]} samples on rank 0 but {other} on rank {rank}; give every rank all the data, in "
                "one order: hvdkit shards them itself"
            )


def _check_samples(world: World, places: list[int], found: list[str], again: list[str]) -> None:
    steady = [first if first == second else None for first, second in zip(found, again, strict=True)]
    held = world.engine.allgather_object(steady)
    for place, digests in zip(places, zip(*held, strict=True), strict=True):
        for rank, digest in enumerate(digests):
            if None not in (digest, digests[0]) and digest != digests[0]:
                raise DataError(
                    f"data: sample {place} on rank {rank} is not that of rank 0; give every rank the same data in one "
                    "order (split or shuffled with one seed on all ranks): hvdkit shards them itself"
                )


def fingerprint(length: int, sample: Callable[[list[int]], Iterable[Any]]) -> tuple[int, list[str]]:
    """Return the length of data and digests of some samples: what the same data have alike on all ranks."""
    return length, _digests(sample(_places(length)) if length else [])


def _places(length: int) -> list[int]:
    return sorted({int(place) for place in np.linspace(0, length - 1, SAMPLES)})


def check_same_arrays(world: World, data: Any) -> None:
    """Compare an array, or a tuple, list or dict of arrays, over ranks; called by all ranks.

    Raises:
        DataError: Ranks hold other arrays, or in another order; on every rank.
    """
    rows = of_arrays(_by_place, data)
    check_same_data(
        world, samples_of(data), lambda places: [of_arrays(operator.itemgetter(place), rows) for place in places]
    )


def _by_place(array: Any) -> Any:
    """Return what gives samples by their place: tables of pandas go by labels."""
    return np.asarray(array) if hasattr(array, "iloc") else array


def _digests(samples: Iterable[Any]) -> list[str]:
    return [digest(sample) for sample in samples]


def digest(sample: Any) -> str:
    """Return a digest of a sample's structure, dtypes, shapes and values."""
    found = hashlib.sha256(_structure(sample).encode())
    for part in leaves(sample):
        found.update(_content(part))
    return found.hexdigest()


def _content(part: Any) -> bytes:
    try:
        array = np.asarray(part)
    except (TypeError, ValueError, RuntimeError):
        array = np.asarray(None)
    if array.dtype.hasobject:
        # an object of some class has nothing that can be compared
        return type(part).__name__.encode()
    return f"{array.dtype} {array.shape}".encode() + np.ascontiguousarray(array).tobytes()


def _structure(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_structure(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__}(" + ",".join(map(_structure, value)) + ")"
    return "."
