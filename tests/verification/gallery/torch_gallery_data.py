"""Data of the gallery's recipes: arrays, data sets of one's own, and streams."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset

import hvdkit
from hvdkit.recipe.trees import of_arrays

SAMPLES, HELD_OUT = 51, 13


def arrays(train: Any) -> hvdkit.Data:
    """Return data of which the last samples are held out."""
    first = of_arrays(lambda array: array[:SAMPLES], train)
    rest = of_arrays(lambda array: array[SAMPLES : SAMPLES + HELD_OUT], train)
    return hvdkit.Data(first, rest)


def normal(*shape: int, seed: int = 5) -> Any:
    return np.random.default_rng(seed).normal(size=(SAMPLES + HELD_OUT, *shape)).astype(np.float32)


def labels(classes: int, *shape: int) -> Any:
    return np.random.default_rng(6).integers(0, classes, (SAMPLES + HELD_OUT, *shape))


class Pictures(Dataset):
    """Pictures with boxes and classes, augmented by three generators."""

    def __init__(self, samples: int, seed: int, augmented: bool) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.images = torch.randn(samples, 3, 8, 8, generator=generator)
        self.boxes = torch.rand(samples, 4, generator=generator)
        self.augmented = augmented

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, place: int) -> Any:
        image = self.images[place]
        if self.augmented:
            if random.random() < 0.3:
                image = image.flip(-1)
            image = image * float(np.random.uniform(0.8, 1.2)) + 0.1 * torch.randn(1)
        return image, {"box": self.boxes[place], "kind": place % 3}


class Shuffled(IterableDataset):
    """A stream that shuffles itself by the random generator of Python, anew in every epoch."""

    def __init__(self, samples: int) -> None:
        self.samples, self.epoch = samples, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        places = list(range(self.samples))
        random.shuffle(places)
        for place in places:
            row = torch.sin(torch.arange(6.0) * (place + 1))
            yield row.reshape(3, 2), place % 4


class Sentences(Dataset):
    """Sentences of several lengths."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, place: int) -> Any:
        return torch.arange(1 + place % 5) * (place + 1) % 8 + 1, place % 3


def padded(samples: list[Any]) -> Any:
    words, targets = zip(*samples, strict=True)
    return torch.nn.utils.rnn.pad_sequence(list(words), batch_first=True), torch.tensor(targets)
