"""Looks whether all ranks read the same stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hvdkit.errors import DataError
from hvdkit.recipe.trees import leaves
from hvdkit.training.same_data import SAMPLES, digest

# one row for each sample, with a digest of each of its parts
Evidence = list[list[str]]


def evidence_of(samples: Sequence[Any]) -> Evidence:
    """Return digests of the first few samples, part by part."""
    return [[digest(part) for part in leaves(sample)] for sample in samples[:SAMPLES]]


def check_same_stream(counts: Sequence[int], held: Sequence[Evidence]) -> None:
    """Compare what each rank read of a stream; called with the same arguments on all ranks.

    Samples that are augmented at random may differ, where another part of them, such as an index or a label, varies
    alike on all ranks.

    Args:
        counts: How many samples each rank read for this update.
        held: What :func:`evidence_of` returned on each.

    Raises:
        DataError: The streams differ.
    """
    for rank, (count, evidence) in enumerate(zip(counts, held, strict=True)):
        if count != counts[0]:
            raise DataError(_advice(f"the stream goes on to {counts[0]} samples on rank 0 but {count} on rank {rank}"))
        if not _alike(held[0], evidence):
            raise DataError(_advice(f"the stream on rank {rank} is not that of rank 0"))


def _alike(first: Evidence, other: Evidence) -> bool:
    if first == other:
        return True
    columns = zip(zip(*first, strict=False), zip(*other, strict=False), strict=False)
    return any(mine == theirs and len(set(mine)) > 1 for mine, theirs in columns)


def _advice(what: str) -> str:
    return (
        f"data: {what}; let every rank read the whole stream in one order (no split by rank, shuffles with one seed): "
        "hvdkit shares it out itself"
    )
