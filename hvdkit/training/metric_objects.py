"""Metrics that keep a state of their own: what trainers and ``evaluate`` need of them in every framework."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from hvdkit.errors import HvdkitError, RecipeError
from hvdkit.job.arrays import on_host
from hvdkit.job.world import World

Mean = Callable[[Any, Any], Any]


class MetricObjects(Protocol):
    """Metric objects of a framework, whose states are joined over ranks.

    Attributes:
        names: What their results are called.
    """

    names: list[str]

    def reset(self) -> None:
        """Begin anew."""

    def update(self, outputs: Any, targets: Any, count: int) -> None:
        """Take a batch of this rank."""

    def results(self, world: World | None) -> dict[str, float]:
        """Return the results over all ranks; None for this rank's own."""

    def apart(self) -> AbstractContextManager[None]:
        """Begin anew inside, and go on from the state of before behind it."""


Objects = TypeVar("Objects", bound=MetricObjects)


def sorted_metrics(
    entries: Iterable[Any],
    loss: Any,
    world: World,
    *,
    objects_in: Callable[[Any], dict[str, Any]],
    mean_of: Callable[[Any], tuple[str, Mean]],
    join: Callable[[dict[str, Any]], Objects],
) -> tuple[list[str], dict[str, Mean], Objects]:
    """Sort metrics into those that are averaged and those that keep a state of their own; called by all ranks.

    Args:
        entries: The metrics of this rank.
        loss: None if none is measured.
        world: The job.
        objects_in: Returns the metrics in an entry that keep a state, by their names.
        mean_of: Returns name and function of any other entry.
        join: Makes one of the metrics that keep a state.

    Returns:
        All names in order, the means, and the metrics that keep a state.

    Raises:
        HvdkitError: What any of the functions raised, or names that clash or differ between ranks; on every rank.
    """
    names = [] if loss is None else ["loss"]
    means: dict[str, Mean] = {}
    held: dict[str, Any] = {}
    problem, objects = None, join({})
    try:
        for entry in entries:
            found = objects_in(entry)
            others = {} if found else dict([mean_of(entry)])
            names += [*found, *others]
            held |= found
            means |= others
        objects = join(held)
    except HvdkitError as error:
        problem = error
    agree_on_metrics(world, names, problem)
    return names, means, objects


def agree_on_metrics(world: World, names: list[str], problem: HvdkitError | None = None) -> None:
    """Check that all ranks have the same metrics, each under a name of its own; called by all ranks.

    Raises:
        RecipeError: Names differ between ranks, or two metrics have one; on every rank.
        HvdkitError: The problem of a rank; on every rank.
    """
    gathered = world.engine.allgather_object((problem, names))
    for found, _ in gathered:
        if found is not None:
            raise found
    for rank, (_, others) in enumerate(gathered):
        if others != gathered[0][1]:
            raise RecipeError(
                f"metrics are {', '.join(gathered[0][1]) or 'none'} on rank 0 but {', '.join(others) or 'none'} on "
                f"rank {rank}; give every rank the same in one order"
            )
    twice = next((name for place, name in enumerate(names) if name in names[:place]), None)
    if twice is not None:
        raise RecipeError(
            f"two metrics are called {twice!r}, so their results would be mixed; give each its own (name= in "
            "Keras, a MetricCollection({name: metric}) for torchmetrics, def for functions)"
        )


def flat_results(name: str, result: Any) -> dict[str, float]:
    """Return a metric's result as named floats: of an array one for each entry, of a dict one for each key.

    Args:
        name: Of the metric.
        result: A number, an array or a tensor, or a dict of them.

    Raises:
        RecipeError: It is none of these.
    """
    if isinstance(result, dict):
        return {key: value for part, entry in result.items() for key, value in flat_results(str(part), entry).items()}
    held = on_host(result)
    if getattr(held, "size", 0) > 1:
        return {f"{name}_{place}": float(value) for place, value in enumerate(held.reshape(-1))}
    try:
        return {name: float(held.reshape(()) if hasattr(held, "reshape") else held)}
    except (TypeError, ValueError):
        raise RecipeError(
            f"metric {name!r} gives a {type(result).__name__}, of which no number can be made; give a metric that "
            "returns a number, or a dict of numbers"
        ) from None
