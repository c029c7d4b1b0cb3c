"""What is looked at in a ``tf.data`` set before it is shared out: whether all ranks would read one order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from hvdkit.errors import DataError, RecipeError
from hvdkit.job.world import World
from hvdkit.training.same_data import SAMPLES, check_same_start

# what makes single samples, whatever its input holds
_MAKERS = ("Unbatch", "FlatMap", "Interleave", "ParallelInterleave")
_ORDERING = ("Shuffle", "Shard", "Random")


def check_order(data: Any, world: World) -> None:
    """Refuse what makes shards overlap or leave gaps; called by all ranks.

    Raises:
        RecipeError: The data set is batched, repeated, shuffled without a seed, sharded by rank already, or read in an
            order that changes from run to run.
        DataError: It is not the same on all ranks.
    """
    facts: list[_Fact] = []
    for node in _nodes(data):
        _check_node(node)
        facts += _facts(node)
    _check_chain(data)
    _compare(world, facts)
    points = [in_one_order(point) for point in _before_shuffles(data)]
    length = int(data.cardinality().numpy())
    check_same_start(world, length if length >= 0 else None, lambda: _first(points))


def is_shuffled(data: Any) -> bool:
    """Say whether a data set is shuffled already."""
    nodes = list(_nodes(data))
    return any(node.kind.startswith("Shuffle") for node in nodes) or any(
        fact.kind.startswith("Shuffle") for node in nodes for fact in _facts(node)
    )


def in_one_order(data: Any) -> Any:
    """Return the data set with the option that lets parallel reads change its order switched off."""
    if data.options().deterministic is not False:
        return data
    options = tf.data.Options()
    options.deterministic = True
    return data.with_options(options)


@dataclass(frozen=True)
class _Node:
    """A step of a data set, and whether what comes out there are the samples."""

    kind: str
    dataset: Any
    samples: bool


@dataclass(frozen=True)
class _Fact:
    """What must be alike on all ranks: the kind of a step, and the numbers that rule its order."""

    kind: str
    numbers: tuple[int, ...]


def _nodes(dataset: Any, samples: bool = True) -> Iterator[_Node]:
    """Yield all steps of a data set, through every input."""
    kind = _kind(dataset)
    yield _Node(kind, dataset, samples)
    inside = samples and not kind.startswith(_MAKERS)
    for place, source in enumerate(dataset._inputs()):
        # the first input of a DirectedInterleave chooses among the others
        yield from _nodes(source, inside and not (kind.startswith("DirectedInterleave") and place == 0))


def _kind(dataset: Any) -> str:
    return type(dataset).__name__.strip("_")


def _check_node(node: _Node) -> None:
    if node.samples and ("Batch" in node.kind or node.kind.startswith("GroupByWindow")):
        raise RecipeError(
            "the data set is batched already; give single samples, such as data.unbatch(): hvdkit shards and batches "
            "them"
        )
    if getattr(node.dataset, "_deterministic", None) == "false":
        raise RecipeError(
            "the data set is read with deterministic=False, in another order on every rank, so shards would overlap; "
            "leave that out"
        )


def _check_chain(data: Any) -> None:
    """Refuse a finite number of rounds over all samples; one input of several may well repeat."""
    node, endless = data, data.cardinality() == tf.data.INFINITE_CARDINALITY
    while node is not None:
        if _kind(node).startswith("Repeat") and not endless:
            raise RecipeError("the data set repeats before the shard; leave repeat() out and give more epochs")
        inputs = node._inputs()
        node = inputs[0] if len(inputs) == 1 else None


def _facts(node: _Node) -> Iterator[_Fact]:
    if node.kind.startswith(_ORDERING):
        names = ("_num_shards", "_index") if node.kind.startswith("Shard") else ("_seed", "_seed2")
        yield _fact(node.kind, [tf.get_static_value(getattr(node.dataset, name)) for name in names])
    functions = node.dataset._functions() if hasattr(node.dataset, "_functions") else []
    for function in functions:
        for operation in function.function.graph.get_operations():
            if operation.type.startswith(_ORDERING) and "Dataset" in operation.type:
                inputs = operation.inputs[2:4] if operation.type.startswith("Shuffle") else operation.inputs[-2:]
                yield _fact(operation.type, [number for entry in inputs for number in _constants(entry)])


def _fact(kind: str, numbers: list[Any]) -> _Fact:
    fact = _Fact(kind.split("Dataset")[0], tuple(int(number or 0) for number in numbers))
    if fact.kind != "Shard" and not any(fact.numbers):
        raise RecipeError(
            "the data set is shuffled before the shard without a seed, so shards would overlap; "
            "leave shuffle() out (hvdkit shuffles after the shard) or give it a seed"
        )
    return fact


def _constants(tensor: Any) -> Iterator[int]:
    """Yield the numbers in a graph from which a seed is computed."""
    value = tf.get_static_value(tensor)
    if value is not None and value.ndim == 0:
        yield int(value)
        return
    for entry in tensor.op.inputs:
        yield from _constants(entry)


def _compare(world: World, facts: list[_Fact]) -> None:
    if world.size == 1:
        return
    gathered = world.engine.allgather_object(facts)
    for rank, others in enumerate(gathered):
        if len(others) != len(gathered[0]):
            raise DataError(f"data: the data set of rank {rank} has other steps than that of rank 0; give all the same")
        for first, other in zip(gathered[0], others, strict=True):
            if first == other:
                continue
            if other.kind == first.kind == "Shard":
                raise RecipeError(
                    f"the data set is sharded by rank already: shard{first.numbers} on rank 0 but "
                    f"shard{other.numbers} on rank {rank}; leave shard() out, hvdkit shards it itself"
                )
            raise RecipeError(
                f"the data set is shuffled with another seed on rank {rank} than on rank 0, so shards would overlap; "
                "give shuffle() one seed on all ranks, or leave it out: hvdkit shuffles after the shard"
            )


def _before_shuffles(dataset: Any) -> Iterator[Any]:
    """Yield the data sets whose first samples are compared between ranks: not behind a shuffle, with its buffer."""
    shuffled = [node.dataset for node in _nodes(dataset) if node.kind.startswith("Shuffle")]
    if not shuffled:
        yield dataset
    for node in shuffled:
        source = node._inputs()[0]
        if not any(inner.kind.startswith("Shuffle") for inner in _nodes(source)):
            yield source


def _first(points: list[Any]) -> list[Any]:
    """Return the first few samples of some data sets."""
    samples = (sample for point in points for sample in point.take(SAMPLES))
    return [tf.nest.map_structure(_content, sample) for sample in samples]


def _content(value: Any) -> Any:
    return value.numpy() if hasattr(value, "numpy") else str(value)
