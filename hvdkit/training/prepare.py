"""A known set, ready to train on: data, sampler and loader of this process."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hvdkit.datasets.checks import check
from hvdkit.datasets.cifar import CLASSES, cifar10
from hvdkit.datasets.digits import fashion_mnist, mnist
from hvdkit.errors import DataError, RecipeError
from hvdkit.recipe.declaration import FRAMEWORKS, Data

_LOADERS = {"mnist": mnist, "fashion_mnist": fashion_mnist, "cifar10": cifar10}


@dataclass(frozen=True)
class Part:
    """The training or the validation part of a set, as one framework and one process see it.

    Attributes:
        data: All samples: a map-style data set for torch, a ``tf.data.Dataset`` for tf, arrays ``(x, y)`` for keras.
        sampler: For torch, the indices of this process's samples, with a length and ``set_epoch``; else None.
        loader: This process's batches, what the backend's ``shard`` returns; for validation with ``train=False``: each
            sample once, so that processes may have different numbers of batches.
    """

    data: Any
    sampler: Any
    loader: Any


@dataclass(frozen=True)
class Prepared:
    """What :func:`prepare_datasets` returns."""

    train: Part
    validation: Part
    classes: int


class RankSampler:
    """The indices of this process's samples, each once, in the order in which its loader takes them."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def set_epoch(self, epoch: int) -> None:
        """Take the order of this epoch, counted from 0; it is the loader's too."""
        self._loader.set_epoch(epoch)

    def __len__(self) -> int:
        return sum(len(part.indices) for part in self._parts())

    def __iter__(self) -> Iterator[int]:
        for part in self._parts():
            yield from part.indices.tolist()

    def _parts(self) -> Iterator[Any]:
        return (part for part in self._loader.parts() if part.weight)


def prepare_datasets(
    name: str,
    framework: str,
    batch_size: int,
    data_dir: str | os.PathLike[str] | None = None,
    *,
    validation_batch_size: int | None = None,
    seed: int = 0,
    uneven: str = "exact",
) -> Prepared:
    """Read a set and give this process its share, as the eight steps do; ``init`` comes first.

    Args:
        name: ``mnist``, ``fashion_mnist`` or ``cifar10``.
        framework: ``torch``, ``tf`` or ``keras``.
        batch_size: Training samples per process and batch.
        data_dir: The folder of the set; None as in :func:`mnist` and :func:`fashion_mnist`.
        validation_batch_size: The same for validation, ``batch_size`` if None.
        seed: Of the order of the training samples, the same on all ranks. Validation samples keep theirs.
        uneven: What happens to the last, incomplete global batch in training: ``exact``, ``pad`` or ``drop``.

    Raises:
        DataError: The set is unknown, missing or damaged, or too small for ``drop``.
        RecipeError: The framework is unknown.
        LaunchError: The world is not initialised.
    """
    if name not in _LOADERS:
        raise DataError(f"no data set {name!r} to prepare; there are {', '.join(_LOADERS)}")
    if framework not in FRAMEWORKS:
        raise RecipeError(f"framework {framework!r} is unknown; use one of {', '.join(FRAMEWORKS)}")
    backend = importlib.import_module(f"hvdkit.{framework}")
    data: Data = _LOADERS[name](data_dir)
    check(data, rank=4)
    train = backend.shard(data.train, batch_size, seed=seed, uneven=uneven)
    validation = backend.shard(data.validation, validation_batch_size or batch_size, train=False)
    return Prepared(_part(framework, data.train, train), _part(framework, data.validation, validation), CLASSES)


def _part(framework: str, arrays: Any, loader: Any) -> Part:
    if framework == "torch":
        return Part(loader.source.dataset, RankSampler(loader), loader)
    if framework == "tf":
        import tensorflow as tf

        return Part(tf.data.Dataset.from_tensor_slices(arrays), None, loader)
    return Part(arrays, None, loader)
