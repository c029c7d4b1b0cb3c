"""Step 3: this rank's batches."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import Any, cast

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, Subset

from hvdkit.errors import RecipeError
from hvdkit.job import world as worlds
from hvdkit.job.collective import on_all_ranks
from hvdkit.recipe.plan import MicroBatch
from hvdkit.recipe.trees import map_tree, samples_of
from hvdkit.torch.random_state import one_random_state
from hvdkit.torch.samplers import DrawnBatches, check_sampler, takes_plans_order
from hvdkit.torch.tensors import channels_first, from_array
from hvdkit.training.batches import PlannedBatches, Sharding
from hvdkit.training.same_data import check_same_data


class LoaderSource:
    """Samples of a map-style data set, collated by a ``DataLoader``.

    Attributes:
        dataset: What the samples are taken from.
        targets: All of them where the data are arrays; else None.
        indices: Those of each batch of the current epoch.
    """

    drawn = True

    def __init__(self, dataset: Any, options: dict[str, Any]) -> None:
        self.dataset = dataset
        self.targets = dataset.targets if isinstance(dataset, ArrayDataset) else None
        self.indices: list[list[int]] = []
        self._loader = DataLoader(dataset, batch_sampler=_Indices(self), **options)

    def load(self, parts: list[MicroBatch]) -> Iterator[tuple[Any, Any]]:
        """Yield inputs and targets of each micro-batch of an epoch."""
        self.indices = [part.indices.tolist() for part in parts]
        for batch in self._loader:
            inputs, targets = batch
            yield inputs, targets


class _Indices:
    """The batch sampler: lists of indices of the current epoch."""

    def __init__(self, source: LoaderSource) -> None:
        self._source = source

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self._source.indices)

    def __len__(self) -> int:
        return len(self._source.indices)


class ArrayDataset(Dataset[tuple[Any, Any]]):
    """Neutral arrays, or trees of them; images among the inputs come out NCHW in channels_last strides."""

    def __init__(self, data: Any) -> None:
        self._samples = samples_of(data)
        self._inputs = map_tree(from_array, data[0])
        self.targets = map_tree(_as_target, data[1])

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        inputs, targets = (map_tree(lambda part: part[0], side) for side in self.__getitems__([index]))
        return inputs, targets

    def __getitems__(self, indices: list[int]) -> tuple[Any, Any]:
        inputs = map_tree(lambda part: channels_first(part[indices]), self._inputs)
        return inputs, map_tree(lambda part: part[indices], self.targets)


def _as_target(array: Any) -> torch.Tensor:
    target = from_array(array)
    # int64 are the only integers that torch's losses take
    return target if target.is_floating_point() or target.is_complex() else target.long()


@on_all_ranks
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
) -> PlannedBatches:
    """Step 3: this rank's batches, disjoint and complete over ranks, the same number on each.

    Args:
        data: ``(x, y)``, two arrays or trees (tuple, list, dict) of arrays of one length (images NHWC come out NCHW in
            channels_last strides), a map-style data set, or a ``DataLoader`` over one, whose settings are kept;
            the order of its own sampler is drawn by rank 0.
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
        DataError: The data are empty, too few for ``drop``, or not the same on all ranks.
        RecipeError: The data are of a kind that cannot be sharded, or an option is not available.
    """
    world = worlds.current()
    loader = data if isinstance(data, DataLoader) else None
    dataset, options = _source(data) if loader is None else _unloaded(loader, batch_size)
    options |= _loading(options, workers, prefetch, pin_memory)
    if loader is not None:
        shuffle, uneven = isinstance(loader.sampler, RandomSampler), "drop" if loader.drop_last else uneven
    asked = Sharding(batch_size, shuffle, seed, uneven, accumulate, steps_per_epoch)
    samples = len(cast(Sized, dataset))
    check_same_data(world, samples, lambda places: _some(dataset, options, places))
    source = LoaderSource(dataset, options)
    if loader is None or takes_plans_order(loader):
        return PlannedBatches(source, asked.plan(samples, world), world.rank)
    sampler: Any = loader.sampler
    return DrawnBatches(source, asked.plan(len(sampler), world), world, sampler)


def _source(data: Any) -> tuple[Any, dict[str, Any]]:
    if isinstance(data, tuple) and len(data) == 2:
        return ArrayDataset(data), {"collate_fn": _as_they_are}
    if isinstance(data, IterableDataset) or not hasattr(data, "__getitem__") or not hasattr(data, "__len__"):
        raise RecipeError(
            f"data of class {type(data).__name__} cannot be sharded; give arrays, a data set with __getitem__ and "
            "__len__, or a DataLoader over one"
        )
    return data, {}


def _unloaded(loader: DataLoader[Any], batch_size: int) -> tuple[Any, dict[str, Any]]:
    """Return a loader's data set, and its settings for a loader of this rank's batches."""
    dataset, _ = _source(loader.dataset)
    check_sampler(loader)
    if loader.batch_size is not None and loader.batch_size != batch_size:
        raise RecipeError(
            f"the DataLoader has batch_size {loader.batch_size} but {batch_size} is asked for; make them equal "
            "(it is the batch of one process)"
        )
    options: dict[str, Any] = {
        "collate_fn": loader.collate_fn,
        "worker_init_fn": loader.worker_init_fn,
        "timeout": loader.timeout,
        "generator": loader.generator,
        "pin_memory": loader.pin_memory,
    }
    if loader.num_workers:
        options |= {
            "num_workers": loader.num_workers,
            "prefetch_factor": loader.prefetch_factor,
            "persistent_workers": loader.persistent_workers,
            "multiprocessing_context": loader.multiprocessing_context,
        }
    return dataset, options


def _some(dataset: Any, options: dict[str, Any], places: list[int]) -> Iterator[Any]:
    """Yield single samples, loaded as they will be: a data set may open its files in the worker that first reads."""
    kept = ("num_workers", "multiprocessing_context", "worker_init_fn", "timeout")
    settings = {name: value for name, value in options.items() if name in kept}
    if settings.get("num_workers"):
        settings["num_workers"] = 1
        settings["generator"] = torch.Generator().manual_seed(0)
        yield from DataLoader(Subset(dataset, places), batch_size=None, collate_fn=_as_they_are, **settings)
        return
    with one_random_state():
        for place in places:
            yield dataset[place]


def _loading(options: dict[str, Any], workers: int, prefetch: int, pin_memory: bool | str) -> dict[str, Any]:
    if pin_memory is True and not torch.cuda.is_available():
        raise RecipeError("Shard.pin_memory is True but there is no GPU; use 'auto'")
    pinned = torch.cuda.is_available() if pin_memory == "auto" else bool(pin_memory)
    if workers:
        return {"num_workers": workers, "prefetch_factor": prefetch, "pin_memory": pinned}
    if prefetch != 2 and not options.get("num_workers"):
        raise RecipeError(f"Shard.prefetch is {prefetch} but workers is 0; torch prefetches in worker processes only")
    return {"pin_memory": pinned}


def _as_they_are(batch: Any) -> Any:
    return batch
