"""The updates of a recipe: pass by pass, or all passes of one as a recording."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from hvdkit.errors import RecipeError
from hvdkit.recipe.trees import leaves, map_tree
from hvdkit.torch.graphs.obstacles import obstacle
from hvdkit.torch.graphs.recorder import recorder_for
from hvdkit.torch.graphs.recordings import Recordings
from hvdkit.torch.precision import Precision
from hvdkit.training.batches import Batch
from hvdkit.training.trainer import Setup


@dataclass(frozen=True)
class Pass:
    """One batch on the device.

    Attributes:
        inputs: What the model is given.
        targets: What its outputs are held against.
        count: The samples that it stands for.
        weight: What its mean loss counts for.
        last: Whether an update follows.
    """

    inputs: Any
    targets: Any
    count: int
    weight: float
    last: bool


Compute = Callable[[Sequence[Pass]], list[Any]]


class Updates:
    """Decides what of an update is run at once.

    Raises:
        RecipeError: Graphs are demanded where updates cannot be recorded.
    """

    def __init__(
        self,
        setup: Setup,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        precision: Precision,
        functions: Sequence[Any],
    ) -> None:
        self._waiting: list[Pass] = []
        self._recordings: Recordings | None = None
        self._obstacle = ""
        self._stepping = False
        asked = setup.recipe.cuda_graphs
        recorder = recorder_for(torch.device(setup.device)) if asked else None
        if recorder is None:
            if asked is True:
                raise RecipeError("Recipe.cuda_graphs is True but there is no GPU; use 'auto'")
            return
        reason = obstacle(model, optimizer, scaled=precision.is_scaled)
        if reason and asked is True:
            raise RecipeError(f"Recipe.cuda_graphs is True, but {reason}; use 'auto'")
        self._obstacle = reason
        if not reason:
            self._recordings = Recordings(recorder, model, optimizer, functions)

    def told(self) -> str:
        """Return what the summary says of it."""
        reason = self._obstacle if self._recordings is None else self._recordings.reason
        if reason:
            return f", no CUDA graphs: {reason}"
        return "" if self._recordings is None else ", CUDA graphs"

    @contextmanager
    def pass_by_pass(self) -> Iterator[None]:
        """Run every pass at once inside, whose results are read behind it."""
        self._stepping = True
        try:
            yield
        finally:
            self._stepping = False

    def take(self, batch: Batch, tensors: list[Any]) -> list[Pass]:
        """Return what is to be run now: nothing where the batch waits for others of its update."""
        inputs, targets = tensors
        self._waiting.append(Pass(inputs, targets, batch.count, batch.weight, batch.last))
        # a rank that repeats a sample tells reductions so by the batch that it is at
        together = self._records and batch.count and not self._stepping
        if together and not batch.last:
            return []
        due, self._waiting = self._waiting, []
        return due

    def run(self, passes: list[Pass], compute: Compute) -> list[Any]:
        """Do passes and return their outputs."""
        recordings = self._recordings
        if recordings is None or not passes[-1].last or not all(each.count for each in passes) or self._stepping:
            return compute(passes)
        sides = [(each.inputs, each.targets) for each in passes]

        def work(tensors: list[torch.Tensor]) -> list[Any]:
            held = iter(tensors)
            filled = [map_tree(lambda _: next(held), side) for side in sides]
            return compute([replace(each, inputs=x, targets=y) for each, (x, y) in zip(passes, filled, strict=True)])

        key = tuple((each.count, each.weight) for each in passes)
        return recordings.run(key, [leaf for side in sides for leaf in leaves(side)], work)

    @property
    def _records(self) -> bool:
        return self._recordings is not None and not self._recordings.over
