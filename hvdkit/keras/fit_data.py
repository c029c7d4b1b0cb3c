"""Data that are given to ``fit`` as they are: arrays that all ranks hold alike are shared out."""

from __future__ import annotations

import math
import operator
from typing import Any

from hvdkit.errors import RecipeError
from hvdkit.job.world import World
from hvdkit.keras.fit_arrays import BATCH_SIZE, fingerprint_of, length_of, on_host
from hvdkit.keras.fit_batches import is_sharded
from hvdkit.keras.fit_own_batches import check_own_batches, share_validation
from hvdkit.keras.sharding import shard
from hvdkit.recipe.trees import map_tree


def share_out(world: World, given: dict[str, Any], *, averaged: bool, seed: int, accumulate: int) -> None:
    """Replace, in the arguments of ``fit``, arrays that are the same on all ranks; called by all ranks.

    Args:
        world: The job.
        given: The arguments of ``fit``, changed in place.
        averaged: Whether metrics are averaged over ranks.
        seed: Of the order of the samples.
        accumulate: Batches per update.

    Raises:
        RecipeError: They cannot be shared out, or ranks hold arrays of their own that make other numbers of batches.
        DataError: There are fewer validation samples than ranks.
    """
    if not is_sharded(given.get("x")):
        check_own_batches(world, given)
        _share_training(world, given, seed, accumulate)
    if averaged:
        share_validation(world, given)


def _share_training(world: World, given: dict[str, Any], seed: int, accumulate: int) -> None:
    x, y = given.get("x"), given.get("y")
    arrays = [part for part in (x, y, given.get("sample_weight")) if part is not None]
    length, batch = length_of(arrays), given.get("batch_size") or BATCH_SIZE
    split = (given.get("validation_split") or 0.0) if given.get("validation_data") is None else 0.0
    kept = None if length is None else math.floor(length * (1 - split))
    batches = given.get("steps_per_epoch") or (kept and -(-kept // batch))
    held = world.engine.allgather_object((length, batches, fingerprint_of(arrays, length)))
    if any(lengths is None for lengths, _, _ in held):
        return
    if any(other != held[0] for other in held):
        for rank, (samples, number, _) in enumerate(held):
            if number != held[0][1]:
                raise RecipeError(
                    f"fit: rank 0 has {held[0][0]} samples in {held[0][1]} batches but rank {rank} has {samples} in "
                    f"{number}, so one would wait for the other; give hvdkit.keras.shard((x, y), batch_size) the data "
                    "of all ranks"
                )
        return
    if y is None or given.get("sample_weight") is not None:
        names = "x" if y is None else "x, y and sample_weight"
        raise RecipeError(
            f"fit: all ranks hold the same {names}, and each would train on all of them; give each rank its own part, "
            "x[world.rank::world.size]" + ("" if y is None else ", and so on")
        )
    assert kept is not None
    if given.pop("validation_split", None) and given.get("validation_data") is None:
        given["validation_data"] = map_tree(operator.itemgetter(slice(kept, None)), on_host((x, y)))
        x, y = map_tree(operator.itemgetter(slice(kept)), on_host((x, y)))
    asked: dict[str, Any] = {"shuffle": bool(given.get("shuffle", True)), "seed": seed, "accumulate": accumulate}
    given["x"] = shard(on_host((x, y)), batch, **asked)
    if given["x"].weighted:
        raise RecipeError(
            f"fit: {kept} samples do not share out evenly over {world.size} ranks in the last batches of {batch}, "
            "which takes weights; give hvdkit.keras.shard((x, y), batch_size), and weighted_metrics to compile, or "
            "shard with uneven='drop'"
        )
    given["x"].set_epoch(given.get("initial_epoch") or 0)
    given["shuffle"] = False  # they come in an order of their own
    given.pop("y", None)
    given.pop("batch_size", None)
    if given.get("validation_batch_size") is None and isinstance(given.get("validation_data"), (tuple, list)):
        given["validation_batch_size"] = batch
