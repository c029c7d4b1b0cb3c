"""Step 3: this rank's batches."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import Any, cast

import torch
from torch.utils.data import DataLoader, RandomSampler, Subset

from hvdkit.errors import RecipeError
from hvdkit.job import world as worlds
from hvdkit.job.collective import on_all_ranks
from hvdkit.recipe.evaluation import EvaluationPlan, check_evaluation
from hvdkit.recipe.plan import MicroBatch
from hvdkit.recipe.trees import is_arrays
from hvdkit.torch.array_data import ArrayDataset
from hvdkit.torch.array_source import ArraySource, device_for
from hvdkit.torch.random_state import one_random_state
from hvdkit.torch.samplers import DrawnBatches, check_sampler, drawn_order, takes_each_once, takes_plans_order
from hvdkit.torch.streams import as_it_is, evaluate_stream, is_stream, shard_stream
from hvdkit.training.batches import LoopBatches, PlannedBatches, Sharding, given_batch_size, refuse_sharded
from hvdkit.training.evaluation_batches import EvaluationBatches
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

    def load(self, parts: list[MicroBatch]) -> Iterator[Any]:
        """Yield the samples of each micro-batch of an epoch, collated."""
        self.indices = [part.indices.tolist() for part in parts]
        yield from self._loader


class _Indices:
    """The batch sampler: lists of indices of the current epoch."""

    def __init__(self, source: LoaderSource) -> None:
        self._source = source

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self._source.indices)

    def __len__(self) -> int:
        return len(self._source.indices)


@on_all_ranks
def shard(
    data: Any,
    batch_size: int | None = None,
    *,
    shuffle: bool = True,
    seed: int = 0,
    uneven: str = "exact",
    accumulate: int = 1,
    steps_per_epoch: int | None = None,
    workers: int = 0,
    prefetch: int = 2,
    pin_memory: bool | str = "auto",
    on_device: bool | str = False,
    train: bool = True,
    already_split: bool = False,
) -> LoopBatches:
    """Step 3: this rank's batches, disjoint and complete over ranks, the same number on each.

    Args:
        data: An array, or a tuple, list or dict of arrays of one length, such as ``(x, y)`` or ``((x1, x2), y)``
            (NumPy images NHWC come out NCHW in channels_last strides, tensors as they are); a map-style data set; a
            stream, that is an ``IterableDataset`` or a function that returns an iterator; or a ``DataLoader`` over one
            of the last two, whose settings are kept; the order of its own sampler is drawn by rank 0.
        batch_size: Samples per process and batch; a ``DataLoader`` has its own.
        shuffle: A new order every epoch, from ``seed`` and the epoch alone; streams keep theirs.
        seed: The same on all ranks.
        uneven: ``exact`` (short batches are weighted), ``pad`` (samples repeat) or ``drop``.
        accumulate: Batches per optimizer update.
        steps_per_epoch: Updates per epoch and process, if not all the data; a stream goes on where it stopped.
        workers: Loader processes of each process; a stream has one at most.
        prefetch: Batches each worker prepares ahead; needs workers.
        pin_memory: ``auto`` pins when there is a GPU.
        on_device: True holds arrays on this process's GPU, as they are stored, and gathers batches there, so that
            these are tensors of the GPU; ``auto`` does so if there is a GPU and they take up to a quarter of what is
            free on it.
        train: False for evaluation: each sample once and in order, whatever ``shuffle`` says; none is repeated, and
            ranks may have different numbers of batches, one of them none. Call nothing in the loop that all ranks must
            call.
        already_split: A stream gives each rank, and each loader worker, its own part; as many workers as asked for read
            it then, and ranks that come to their end earlier weigh less.

    Raises:
        DataError: The data are empty, too few for ``drop``, or not the same on all ranks.
        RecipeError: The data are of a kind that cannot be sharded, or an option is not available.
    """
    refuse_sharded(data)
    world = worlds.current()
    loader = data if isinstance(data, DataLoader) else None
    batch_size = given_batch_size(batch_size, None if loader is None else loader.batch_size)
    dataset, options = _source(data) if loader is None else _unloaded(loader, batch_size)
    options |= _loading(options, workers, prefetch, pin_memory)
    if loader is not None:
        shuffle, uneven = isinstance(loader.sampler, RandomSampler), "drop" if loader.drop_last else uneven
    asked = Sharding(batch_size, shuffle, seed, uneven, accumulate, steps_per_epoch)
    if not train:
        check_evaluation(asked.uneven, accumulate, steps_per_epoch)
    if is_stream(dataset):
        if on_device is True:
            raise RecipeError("Shard.on_device is True but the data are a stream; only arrays can be held on a GPU")
        if train:
            return shard_stream(dataset, asked, world, options, split=already_split)
        if already_split:
            raise RecipeError("already_split is for training; evaluate on a stream that every rank reads whole")
        return evaluate_stream(dataset, asked, world, options)
    if already_split:
        raise RecipeError("already_split is for streams; give every rank all the data, hvdkit shards them itself")
    samples = len(cast(Sized, dataset))
    check_same_data(world, samples, lambda places: _some(dataset, options, places))
    source = _loading_source(dataset, options, on_device)
    if not train:
        return _evaluation(source, asked, loader)
    if loader is None or takes_plans_order(loader):
        return PlannedBatches(source, asked.plan(samples, world), world.rank)
    sampler: Any = loader.sampler
    return DrawnBatches(source, asked.plan(len(sampler), world), world, sampler)


def _loading_source(dataset: Any, options: dict[str, Any], on_device: bool | str) -> ArraySource | LoaderSource:
    plain = isinstance(dataset, ArrayDataset) and options.get("collate_fn") is as_it_is
    if plain and not options.get("num_workers"):
        return ArraySource(dataset, device_for(dataset, on_device), pinned=options["pin_memory"])
    if on_device is True:
        raise RecipeError("Shard.on_device is True, but only arrays without loader workers can be held on a GPU")
    return LoaderSource(dataset, options)


def _evaluation(
    source: ArraySource | LoaderSource, asked: Sharding, loader: DataLoader[Any] | None
) -> EvaluationBatches:
    world = worlds.current()
    if loader is None or takes_each_once(loader):
        plan = EvaluationPlan(len(source.dataset), asked.batch_size, world.size)
        return EvaluationBatches(source, plan, world.rank)
    sampler: Any = loader.sampler
    plan = EvaluationPlan(len(sampler), asked.batch_size, world.size)
    return EvaluationBatches(source, plan, world.rank, lambda: world.root_only(lambda: drawn_order(sampler)))


def _source(data: Any) -> tuple[Any, dict[str, Any]]:
    """Return a data set or a stream, and how its samples are collated."""
    if isinstance(data, (tuple, dict)) or is_arrays(data):
        return ArrayDataset(data), {"collate_fn": as_it_is}
    map_style = hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, type)
    if not is_stream(data) and not map_style:
        what = f"the class {data.__name__} itself" if isinstance(data, type) else f"data of class {type(data).__name__}"
        raise RecipeError(
            f"{what} cannot be sharded; give arrays of one length, a data set with "
            "__getitem__ and __len__, an IterableDataset, a function that returns an iterator, or a DataLoader"
        )
    return data, {}


def _unloaded(loader: DataLoader[Any], batch_size: int) -> tuple[Any, dict[str, Any]]:
    """Return a loader's data set, and its settings for a loader of this rank's batches."""
    dataset: Any = loader.dataset
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
        yield from DataLoader(Subset(dataset, places), batch_size=None, collate_fn=as_it_is, **settings)
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
