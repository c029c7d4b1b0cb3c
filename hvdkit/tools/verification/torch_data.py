"""What the tool needs to know about torch's data sets, loaders and streams."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, default_collate

from hvdkit.recipe.trees import map_tree
from hvdkit.tools.verification.given import DRAWN, PLACES, STREAM, Given
from hvdkit.tools.verification.layout import as_dtype
from hvdkit.torch.samplers import takes_each_once, takes_plans_order
from hvdkit.torch.streams import is_stream

_SEED_OF_STREAMS = 1_000_003
"""hvdkit seeds what a stream draws by the recipe's seed times this, plus the epoch."""


def describe(data: Any) -> Given:
    """Say what a torch data set, a loader or a stream is."""
    loader = data if isinstance(data, DataLoader) else None
    dataset = data if loader is None else loader.dataset
    if is_stream(dataset):
        return Given(STREAM)
    if loader is None:
        return Given(PLACES, len(dataset))
    sampler: Any = loader.sampler
    uneven = "drop" if loader.drop_last else None
    if not takes_plans_order(loader):
        return Given(DRAWN, len(sampler), False, uneven)
    return Given(PLACES, len(sampler), isinstance(sampler, RandomSampler), uneven)


def evaluated_in_order(data: Any) -> bool:
    """Say whether a loader brings all samples once, however it draws their order."""
    return not isinstance(data, DataLoader) or takes_each_once(data)


class _First(Dataset[Any]):  # type: ignore[misc]
    """The first samples of a map-style data set, in the dtype that is verified."""

    def __init__(self, dataset: Any, samples: int, dtype: str) -> None:
        self._dataset, self._samples, self._dtype = dataset, samples, dtype

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, place: int) -> Any:
        if not 0 <= place < self._samples:
            raise IndexError(place)
        return _in_dtype(self._dataset[place], self._dtype)

    def __getitems__(self, places: list[int]) -> list[Any]:
        return [_in_dtype(sample, self._dtype) for sample in fetch(self._dataset, places)]


class _Stream(IterableDataset[Any]):  # type: ignore[misc]
    """A stream in the dtype that is verified."""

    def __init__(self, stream: Any, dtype: str) -> None:
        self._stream, self._dtype = stream, dtype

    def set_epoch(self, epoch: int) -> None:
        """Pass the epoch on."""
        if hasattr(self._stream, "set_epoch"):
            self._stream.set_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        return (_in_dtype(sample, self._dtype) for sample in _opened(self._stream))


def _in_dtype(sample: Any, dtype: str) -> Any:
    return map_tree(lambda part: as_dtype(part, dtype), sample)


def fetch(dataset: Any, places: list[int]) -> list[Any]:
    """Return samples as a loader fetches them."""
    if hasattr(dataset, "__getitems__"):
        return list(dataset.__getitems__(places))
    return [dataset[place] for place in places]


def part(data: Any, samples: int | None, dtype: str) -> Any:
    """Return the first samples, all of them if None, in a dtype; a loader keeps its other settings."""
    loader = data if isinstance(data, DataLoader) else None
    dataset: Any = data if loader is None else loader.dataset
    if is_stream(dataset):
        taken: Any = _Stream(dataset, dtype) if dtype == "float64" else dataset
    elif loader is not None and not takes_each_once(loader):
        taken = _First(dataset, len(dataset), dtype)
    else:
        taken = _First(dataset, min(samples or len(dataset), len(dataset)), dtype)
    return taken if loader is None else _like(loader, taken)


def _like(loader: DataLoader[Any], dataset: Any) -> DataLoader[Any]:
    """Return a loader with the settings of another, over another data set."""
    sampler: Any = loader.sampler
    order: dict[str, Any] = {}
    if not isinstance(dataset, IterableDataset) and takes_each_once(loader):
        order = {"shuffle": isinstance(sampler, RandomSampler)}
    elif not isinstance(dataset, IterableDataset):
        order = {"sampler": sampler}
    if loader.num_workers:
        order |= {
            "prefetch_factor": loader.prefetch_factor,
            "persistent_workers": loader.persistent_workers,
            "multiprocessing_context": loader.multiprocessing_context,
        }
    return DataLoader(
        dataset,
        loader.batch_size,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        drop_last=loader.drop_last,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        generator=loader.generator,
        pin_memory=loader.pin_memory,
        **order,
    )


def samples_at(data: Any, places: list[int]) -> list[Any]:
    """Return the samples at some places."""
    return fetch(data.dataset if isinstance(data, DataLoader) else data, places)


def collated(data: Any, samples: list[Any]) -> Any:
    """Return a batch of samples."""
    return data.collate_fn(samples) if isinstance(data, DataLoader) else default_collate(samples)


def drawn(data: DataLoader[Any]) -> list[int]:
    """Return the places that a loader's own sampler draws."""
    return [int(place) for place in data.sampler]


def from_stream(data: Any, samples: int | None) -> list[Any]:
    """Read samples of a stream, which begins anew at its end; None reads it once, to its end."""
    stream: Any = data.dataset if isinstance(data, DataLoader) else data
    if samples is None:
        return list(_epoch(stream, 0))
    every = itertools.chain.from_iterable(_epoch(stream, epoch) for epoch in itertools.count())
    return list(itertools.islice(every, samples))


def _epoch(stream: Any, epoch: int) -> Iterator[Any]:
    if hasattr(stream, "set_epoch"):
        stream.set_epoch(epoch)
    return iter(_opened(stream))


def _opened(stream: Any) -> Any:
    return stream if hasattr(stream, "__iter__") else stream()


def seed_of_stream(seed: int) -> int:
    """Return what hvdkit seeds a stream by."""
    return seed * _SEED_OF_STREAMS
