"""What ``end_to_end`` trains on: arrays of MNIST's and of ImageNet's shape, Fashion-MNIST, and a folder of JPEGs."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torchvision import transforms
from torchvision.datasets import ImageFolder

import hvdkit
from benchmarks.end_to_end_methods import Task
from hvdkit.datasets.folder import SCALE
from hvdkit.torch.models import resnet34

CLASSES = 10
SIDE = 224
COARSE = 7
SHAPES = {"mnist-shape": (28, 28, 1), "resnet": (SIDE, SIDE, 3)}
SAMPLES = {"mnist-shape": 60_000, "resnet": 2_048}
MODELS = {"mnist-shape": "mnist_cnn", "resnet": "resnet34"}


def array_task(kind: str, model: str | None, samples: int | None, **settings: Any) -> Task:
    """Return a task on images in memory: a coarse pattern of their class, and noise, around 0."""
    random = np.random.default_rng(0)
    count, (side, _, colours) = SAMPLES[kind] if samples is None else samples, SHAPES[kind]
    x = random.random((count, side, side, colours), np.float32)
    y = random.integers(0, CLASSES, count)
    x -= 0.5
    for label in range(CLASSES):
        coarse = random.random((COARSE, COARSE, colours), np.float32) - 0.5
        x[y == label] += coarse.repeat(side // COARSE, 0).repeat(side // COARSE, 1)
    # some wrong labels: a loss near 0 would leave denormal numbers to compute with
    y[::10] = random.integers(0, CLASSES, len(y[::10]))
    return Task(hvdkit.Data(train=(x, y), classes=CLASSES), model or MODELS[kind], **settings)


def fashion_task(model: str | None, samples: int | None, **settings: Any) -> Task:
    """Return a task on Fashion-MNIST, or on the first of its images."""
    data = hvdkit.datasets.fashion_mnist()
    x, y = data.train
    return Task(
        hvdkit.Data(train=(x[:samples], y[:samples]), validation=data.validation, classes=CLASSES),
        model or MODELS["mnist-shape"],
        **settings,
    )


def jpeg_task(folder: Path, **settings: Any) -> Task:
    """Return a task of ResNet34 on the JPEGs in class folders, decoded and augmented anew in every epoch."""
    crops = [transforms.RandomResizedCrop(SIDE), transforms.RandomHorizontalFlip()]
    to_tensor = [transforms.ToTensor(), transforms.Normalize(*SCALE)]
    train = folder / "train" if (folder / "train").is_dir() else folder
    images = ImageFolder(str(train), transforms.Compose([*crops, *to_tensor]))
    model = functools.partial(resnet34, (SIDE, SIDE, 3), len(images.classes))
    return Task(hvdkit.Data(train=images), model, **settings)


def make_jpegs(folder: Path, count: int) -> None:
    """Write JPEGs of 400 x 300 pixels and about 100 kB, sorted by class, whose brightness tells it."""
    random = np.random.default_rng(0)
    for number in range(count):
        label = number % CLASSES
        coarse = Image.fromarray(random.integers(0, 256, (75, 100, 3), np.uint8)).resize((400, 300))
        noisy = np.asarray(coarse, np.float32) + random.normal(0, 32, (300, 400, 3))
        pixels = (noisy * 0.6 + 8 * label).clip(0, 255).astype(np.uint8)
        place = folder / str(label) / f"{number}.jpg"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(place, quality=93)
