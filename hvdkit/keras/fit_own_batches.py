"""Batches and validation data that a user brings to ``fit``: as many on every rank, and each sample counted once."""

from __future__ import annotations

import operator
from typing import Any

from hvdkit.errors import DataError, RecipeError
from hvdkit.job.world import World
from hvdkit.keras.fit_arrays import BATCH_SIZE, fingerprint_of, length_of, on_host
from hvdkit.keras.fit_batches import is_sharded
from hvdkit.keras_common.compat import indexed_dataset, library
from hvdkit.recipe.trees import map_tree
from hvdkit.training.evaluation_batches import Evaluation
from hvdkit.training.same_data import digest


def check_own_batches(world: World, given: dict[str, Any]) -> None:
    """Refuse batches of which ranks have other numbers, or the same ones; called by all ranks.

    Raises:
        RecipeError: Some ranks would wait for others, or all would train on the same samples.
    """
    x = given.get("x")
    number = None if given.get("steps_per_epoch") else _batches(x)
    first = _first(x) if isinstance(x, indexed_dataset()) else None
    held = world.engine.allgather_object((number, first))
    for rank, (others, _) in enumerate(held):
        if None not in (others, held[0][0]) and others != held[0][0]:
            raise RecipeError(
                f"fit: rank 0 has {held[0][0]} batches but rank {rank} has {others}, so one would wait for the other; "
                "give fit steps_per_epoch, or let hvdkit.keras.shard share out the samples"
            )
    if _all_alike([found for _, found in held]):
        raise RecipeError(
            f"fit: the {type(x).__name__} gives all ranks the same batches, and each would train on all of them; let "
            "it take batch index * world.size + world.rank, and give fewer"
        )


def share_validation(world: World, given: dict[str, Any]) -> None:
    """Give each rank its part of validation data that are the same on all ranks; called by all ranks.

    Raises:
        DataError: There are fewer samples than ranks.
        RecipeError: They are batches that cannot be shared out.
    """
    data = given.get("validation_data")
    if is_sharded(data) or isinstance(data, Evaluation):
        data = None
    arrays = list(data) if isinstance(data, (tuple, list)) else []
    length = length_of(arrays)
    mine = _first(data) if data is not None and not arrays else fingerprint_of(arrays, length)
    if not _all_alike(world.engine.allgather_object(mine)):
        return
    if length is None:
        given["validation_data"] = _own_batches(world, data)
        return
    steps = given.pop("validation_steps", None)
    end = length if steps is None else min(length, steps * (given.get("validation_batch_size") or BATCH_SIZE))
    if end < world.size:
        raise DataError(f"there are fewer validation samples than the {world.size} processes; give at least one each")
    part = operator.itemgetter(slice(world.rank, end, world.size))
    given["validation_data"] = tuple(map_tree(part, on_host(each)) for each in arrays)


def _own_batches(world: World, data: Any) -> Any:
    number = _batches(data)
    if not hasattr(data, "shard") or (number is not None and number < world.size):
        raise RecipeError(
            f"fit: the validation data, a {type(data).__name__}, give all ranks the same batches, and each sample "
            "would count once per rank; give each rank its own samples"
        )
    return data.shard(world.size, world.rank)


def _all_alike(held: list[Any]) -> bool:
    return held[0] is not None and all(other == held[0] for other in held)


def _batches(data: Any) -> int | None:
    """Return how many batches data have that are no arrays; None if that is not known."""
    if hasattr(data, "cardinality"):
        number = int(data.cardinality())
        return number if number >= 0 else None
    if hasattr(data, "shape") or isinstance(data, (dict, list, tuple)) or not hasattr(data, "__len__"):
        return None
    return len(data)


def _first(data: Any) -> str | None:
    """Return a digest of the first batch; None of what cannot be taken twice, or compared."""
    if isinstance(data, indexed_dataset()):
        return _digest(data[0])
    if library() == "tf" and hasattr(data, "take") and hasattr(data, "shard"):
        return next(map(_digest, data.take(1)), None)
    if hasattr(data, "__len__") and hasattr(data, "__iter__") and not hasattr(data, "shape"):
        return next(map(_digest, data), None)
    return None


def _digest(batch: Any) -> str | None:
    try:
        return digest(on_host(batch))
    except (TypeError, ValueError):
        return None  # ragged or sparse, no array
