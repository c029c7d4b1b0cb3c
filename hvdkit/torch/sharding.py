"""Step 3: this rank's batches."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import Any, cast

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, SequentialSampler

from hvdkit.errors import DataError, RecipeError
from hvdkit.job import world as worlds
from hvdkit.job.world import World
from hvdkit.recipe.plan import MicroBatch, ShardPlan
from hvdkit.torch.tensors import from_array


class Batches:
    """This rank's batches of every epoch; re-iterable, with a length.

    Attributes:
        weight: What the mean loss of the current batch counts for: n_local * size * passes / n_global; 1.0 in a full
            one. A custom loop multiplies its loss by it.
        last: Whether an optimizer update follows the current batch.
        count: How many samples the current batch stands for; 0 for a repeated one.
        dataset: What the batches are taken from.
        plan: How samples are laid out over ranks.
    """

    def __init__(self, dataset: Any, plan: ShardPlan, world: World, options: dict[str, Any]) -> None:
        self.dataset, self.plan = dataset, plan
        self.weight, self.last, self.count = 1.0, True, 0
        self._world, self._epoch = world, 0
        self._loader = DataLoader(dataset, batch_sampler=_Indices(self), **options)

    def set_epoch(self, epoch: int) -> None:
        """Take the order of this epoch, counted from 0, when iteration starts again."""
        self._epoch = epoch

    def __len__(self) -> int:
        return self.plan.passes()

    def __iter__(self) -> Iterator[Any]:
        try:
            for part, batch in zip(self.parts(), self._loader, strict=True):
                self.weight, self.last = part.weight, part.last
                self.count = len(part.indices) if part.weight else 0
                self._world.idle = not self.count
                yield batch
        finally:
            self._world.idle = False
        self._epoch += 1

    def parts(self) -> Iterator[MicroBatch]:
        """Yield what each batch of the current epoch is made of."""
        return self.plan.micro_batches(self._epoch, self._world.rank)


class _Indices:
    """The batch sampler: lists of indices of the current epoch."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[list[int]]:
        for part in self._batches.parts():
            yield part.indices.tolist()

    def __len__(self) -> int:
        return len(self._batches)


class ArrayDataset(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Neutral arrays; images come out NCHW in channels_last strides."""

    def __init__(self, x: Any, y: Any) -> None:
        self.x, self.y = from_array(x), from_array(y)
        if not (self.y.is_floating_point() or self.y.is_complex()):
            # the only integers that torch's losses take
            self.y = self.y.long()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = self.__getitems__([index])
        return x[0], y[0]

    def __getitems__(self, indices: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.x[indices]
        return (x.permute(0, 3, 1, 2) if x.dim() == 4 else x), self.y[indices]


def shard(
    data: Any,
    batch_size: int,
    *,
    shuffle: bool = True,
    seed: int = 0,
    uneven: str = "exact",
    accumulate: int = 1,
    steps_per_epoch: int | None = None,
    workers: int = 0,
    prefetch: int = 2,
    pin_memory: bool | str = "auto",
) -> Batches:
    """Step 3: this rank's batches, disjoint and complete over ranks, the same number on each.

    Args:
        data: ``(x, y)`` arrays (images NHWC; they come out NCHW in channels_last strides), a map-style data set, or a
            ``DataLoader`` over one, whose data set, collation, workers and choice to shuffle are kept.
        batch_size: Samples per process and batch.
        shuffle: A new order every epoch, from ``seed`` and the epoch alone.
        seed: The same on all ranks.
        uneven: ``exact`` (short batches are weighted), ``pad`` (samples repeat) or ``drop``.
        accumulate: Batches per optimizer update.
        steps_per_epoch: Updates per epoch and process, if not all the data.
        workers: Loader processes of each process.
        prefetch: Batches each worker prepares ahead; needs workers.
        pin_memory: ``auto`` pins when there is a GPU.

    Raises:
        DataError: The data are empty, or too few for ``drop``.
        RecipeError: The data are of a kind that cannot be sharded, or an option is not available.
    """
    world = worlds.current()
    dataset, options = _source(data, batch_size)
    if isinstance(data, DataLoader):
        shuffle = isinstance(data.sampler, RandomSampler)
    options |= _loading(workers, prefetch, pin_memory)
    size = len(cast(Sized, dataset))
    plan = ShardPlan(size, batch_size, world.size, accumulate, uneven, shuffle, seed, steps_per_epoch)
    return Batches(dataset, plan, world, options)


def steps(batches: Batches) -> int:
    """Return the optimizer updates per epoch."""
    return batches.plan.steps


def _source(data: Any, batch_size: int) -> tuple[Any, dict[str, Any]]:
    if isinstance(data, DataLoader):
        return _unloaded(data, batch_size)
    if isinstance(data, tuple) and len(data) == 2:
        if len(data[0]) != len(data[1]):
            raise DataError(f"{len(data[0])} samples but {len(data[1])} labels; give one label per sample")
        return ArrayDataset(*data), {"collate_fn": _as_they_are}
    if isinstance(data, IterableDataset) or not hasattr(data, "__getitem__") or not hasattr(data, "__len__"):
        raise RecipeError(
            f"data of class {type(data).__name__} cannot be sharded; give arrays, a data set with __getitem__ and "
            "__len__, or a DataLoader over one"
        )
    return data, {}


def _unloaded(loader: DataLoader[Any], batch_size: int) -> tuple[Any, dict[str, Any]]:
    if loader.batch_size != batch_size:
        raise RecipeError(
            f"the DataLoader has batch_size {loader.batch_size} but {batch_size} is asked for; make them equal "
            "(it is the batch of one process)"
        )
    if not isinstance(loader.sampler, (SequentialSampler, RandomSampler)):
        raise RecipeError(
            f"the DataLoader has its own sampler ({type(loader.sampler).__name__}); leave it out, "
            "hvdkit shards and shuffles"
        )
    dataset, _ = _source(loader.dataset, batch_size)
    options: dict[str, Any] = {"collate_fn": loader.collate_fn, "worker_init_fn": loader.worker_init_fn}
    if loader.num_workers:
        options |= {"num_workers": loader.num_workers, "prefetch_factor": loader.prefetch_factor}
    return dataset, options


def _loading(workers: int, prefetch: int, pin_memory: bool | str) -> dict[str, Any]:
    if pin_memory is True and not torch.cuda.is_available():
        raise RecipeError("Shard.pin_memory is True but there is no GPU; use 'auto'")
    pinned = torch.cuda.is_available() if pin_memory == "auto" else bool(pin_memory)
    if workers:
        return {"num_workers": workers, "prefetch_factor": prefetch, "pin_memory": pinned}
    if prefetch != 2:
        raise RecipeError(f"Shard.prefetch is {prefetch} but workers is 0; torch prefetches in worker processes only")
    return {"pin_memory": pinned}


def _as_they_are(batch: Any) -> Any:
    return batch
