"""Step 3 for TensorFlow: this rank's batches as a ``tf.data.Dataset``, from arrays or the user's own data set."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from hvdkit.errors import DataError, RecipeError
from hvdkit.job.world import World
from hvdkit.keras_common.data.weights import sample_weights, weight_type
from hvdkit.recipe.plan import MicroBatch, ShardPlan


class Sharded:
    """This rank's batches of every epoch.

    Attributes:
        plan: How samples are laid out over ranks; None for an endless stream.
        labels: Those of all ranks, where they are arrays, or None.
        dataset: Batches ``(x, y)``, or ``(x, y, weight per sample)`` with ``weighted``; each iteration is one epoch.
    """

    def __init__(self, plan: ShardPlan | None, rank: int, steps: int) -> None:
        self.plan, self.rank, self.steps = plan, rank, steps
        self.epoch = 0
        self.dataset: Any = None
        self.labels: Any = None

    def parts(self) -> Iterator[MicroBatch]:
        """Yield what each batch of the current epoch is made of."""
        assert self.plan is not None
        return self.plan.micro_batches(self.epoch, self.rank)

    @property
    def passes(self) -> int:
        """Batches per epoch."""
        return self.plan.passes() if self.plan is not None else self.steps


def shard_arrays(data: Any, plan: ShardPlan, rank: int, prefetch: int, weighted: bool) -> Sharded:
    """Shard neutral arrays ``(x, y)``; the order is hvdkit's own, whatever the number of processes.

    With ``weighted`` each sample carries the weight of its batch.
    """
    x, y = (np.asarray(part) for part in data)
    sharded = Sharded(plan, rank, plan.steps)
    sharded.labels = y

    def batches() -> Iterator[Any]:
        for part in sharded.parts():
            batch = (x[part.indices], y[part.indices])
            yield (*batch, sample_weights(part, plan)) if weighted else batch

    signature = [tf.TensorSpec((None, *part.shape[1:]), part.dtype) for part in (x, y)]
    if weighted:
        signature.append(tf.TensorSpec((None,), weight_type()))
    dataset = tf.data.Dataset.from_generator(batches, output_signature=tuple(signature))
    sharded.dataset = dataset.apply(tf.data.experimental.assert_cardinality(sharded.passes)).prefetch(prefetch)
    return sharded


def shard_dataset(data: Any, world: World, settings: dict[str, Any], steps: int | None, prefetch: int) -> Sharded:
    """Shard the user's own data set of single samples, before shuffle and batch.

    Args:
        data: A ``tf.data.Dataset`` that is neither batched nor repeated; endless or of unknown length only with
            ``steps``.
        world: The job.
        settings: ``batch_size``, ``accumulate``, ``uneven``, ``shuffle`` and ``seed``.
        steps: Updates per epoch and process, or None for all the data.
        prefetch: Batches prepared ahead.

    Raises:
        RecipeError: The data set is batched, repeated without ``steps``, or shuffled without a seed.
        DataError: The data are empty or too few.
    """
    _check_order(data)
    samples = int(data.cardinality().numpy())
    if samples == 0:
        raise DataError("the training data are empty; give at least one sample")
    mine = data.shard(world.size, world.rank)
    batch, passes = settings["batch_size"], settings["accumulate"]
    if samples < 0:
        if steps is None:
            raise RecipeError("the data set is endless or of unknown length; give Recipe(steps_per_epoch=...)")
        sharded = Sharded(None, world.rank, steps)
        if settings["shuffle"]:
            mine = mine.shuffle(10 * batch, seed=settings["seed"] + world.rank)
        sharded.dataset = mine.repeat().batch(batch, drop_remainder=True).prefetch(prefetch)
        return sharded
    plan = ShardPlan(
        samples, batch, world.size, passes, settings["uneven"], shuffle=False, seed=0, limit=steps, whole=False
    )
    sharded = Sharded(plan, world.rank, plan.steps)
    counts = [len(part.indices) for part in sharded.parts()]
    if settings["shuffle"]:
        mine = mine.shuffle(min(samples, 10_000), seed=settings["seed"] + world.rank)
    # a rank that has run out of samples repeats one, at weight 0 or as padding
    mine = mine.concatenate(data.take(1)).take(sum(counts))
    sharded.dataset = _in_lengths(mine, counts, batch).prefetch(prefetch)
    return sharded


def _in_lengths(samples: Any, counts: list[int], batch: int) -> Any:
    """Batch samples in the lengths of the plan."""
    batches = samples.batch(batch)
    if any(count != batch for count in counts):
        # one pass over the samples, which may be shuffled
        batches = batches.rebatch(np.array(counts, np.int64))
    return batches.apply(tf.data.experimental.assert_cardinality(len(counts)))


def _check_order(data: Any) -> None:
    """Refuse what makes shards overlap or leave gaps."""
    node: Any = data
    while node is not None:
        kind = type(node).__name__.strip("_")
        if "Batch" in kind:
            raise RecipeError("the data set is batched already; give single samples, hvdkit shards and batches them")
        if kind.startswith("Repeat") and data.cardinality() != tf.data.INFINITE_CARDINALITY:
            raise RecipeError("the data set repeats before the shard; leave repeat() out and give more epochs")
        if kind.startswith("Shuffle") and not _is_seeded(node):
            raise RecipeError(
                "the data set is shuffled before the shard without a seed, so shards would overlap; "
                "leave shuffle() out (hvdkit shuffles after the shard) or give it a seed"
            )
        node = next(iter(node._inputs()), None) if hasattr(node, "_inputs") else None


def _is_seeded(node: Any) -> bool:
    return any(int(tf.get_static_value(seed) or 0) for seed in (node._seed, node._seed2))


def refuse_loader_options(workers: int, pin_memory: bool | str) -> None:
    """Refuse what ``tf.data`` cannot do.

    Raises:
        RecipeError: Loader processes or pinned memory are asked for.
    """
    if workers:
        raise RecipeError(f"Shard.workers is {workers}, but tf.data has its own threads; leave it at 0")
    if pin_memory is True:
        raise RecipeError("Shard.pin_memory is True, but tf.data places batches itself; use 'auto'")


def check_pair(data: Any) -> None:
    """Check that data are a pair of arrays of one length.

    Raises:
        RecipeError: They are not a pair.
        DataError: The lengths differ.
    """
    if not isinstance(data, tuple) or len(data) != 2:
        raise RecipeError(
            f"data of class {type(data).__name__} cannot be sharded; give arrays (x, y) or a tf.data.Dataset"
        )
    if len(data[0]) != len(data[1]):
        raise DataError(f"{len(data[0])} samples but {len(data[1])} labels; give one label per sample")


def take_evaluation(data: Any, world: World, batch_size: int) -> Any:
    """Return this rank's part of validation data, in order, each sample on one rank only.

    Raises:
        DataError: There are fewer samples than processes.
    """
    if not isinstance(data, tf.data.Dataset):
        check_pair(data)
        data = tf.data.Dataset.from_tensor_slices(tuple(np.asarray(part) for part in data))
    else:
        _check_order(data)
    if data.cardinality() == tf.data.INFINITE_CARDINALITY:
        raise DataError("the validation data are endless; limit them with take(n)")
    if 0 <= int(data.cardinality().numpy()) < world.size:
        raise DataError(f"there are fewer validation samples than the {world.size} processes; give at least one each")
    return data.shard(world.size, world.rank).batch(batch_size)
