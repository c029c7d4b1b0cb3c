"""CIFAR-10 from its binary files: one byte for the label, then 32 x 32 pixels of red, of green and of blue."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hvdkit.datasets.checks import check_labels
from hvdkit.datasets.pixels import Scale, to_float
from hvdkit.errors import DataError
from hvdkit.recipe.declaration import Data

CLASSES = 10
SCALE: Scale = ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))

_TRAIN_FILES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
_VALIDATION_FILES = ("test_batch.bin",)
_RECORD = 1 + 3 * 32 * 32


def cifar10(data_dir: str | os.PathLike[str] | None = None, normalise: bool = True) -> Data:
    """Small colour photographs of ten kinds of animals and vehicles.

    Args:
        data_dir: A folder with ``data_batch_1.bin`` to ``data_batch_5.bin`` and ``test_batch.bin``, which becomes the
            validation data. Python packages ship no part of this set, so None is refused.
        normalise: Subtract the mean (0.4914, 0.4822, 0.4465) and divide by the deviation (0.2470, 0.2435, 0.2616) of
            the red, green and blue pixels in 0..1; otherwise the pixels stay in 0..1.

    Returns:
        Images float32 of shape (samples, 32, 32, 3) and labels int64 in 0..9.

    Raises:
        DataError: There is no folder, or a file is missing, is cut short, holds a label out of range, or is one of the
            pickled ones.
    """
    if data_dir is None:
        raise DataError("cifar10 needs data_dir: fetch it with 'python -m hvdkit.datasets cifar10 --data-dir D'")
    folder = Path(data_dir)
    scale = SCALE if normalise else None
    return Data(
        train=_read_files(folder, _TRAIN_FILES, scale),
        validation=_read_files(folder, _VALIDATION_FILES, scale),
        classes=CLASSES,
    )


def _read_files(
    folder: Path, names: tuple[str, ...], scale: Scale | None
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    records = np.concatenate([_read_records(folder, name) for name in names])
    images = records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return to_float(images, scale), records[:, 0].astype(np.int64)


def _read_records(folder: Path, name: str) -> NDArray[np.uint8]:
    path = folder / name
    if not path.is_file():
        raise DataError(_missing(folder, name))
    try:
        values = np.fromfile(path, np.uint8)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None
    if not len(values) or len(values) % _RECORD:
        raise DataError(
            f"{path} is empty or cut short: {len(values)} bytes are no whole number of records of {_RECORD} bytes; "
            "delete it and fetch it again"
        )
    records = values.reshape(-1, _RECORD)
    check_labels(records[:, 0], CLASSES, str(path))
    return records


def _missing(folder: Path, name: str) -> str:
    remedy = f"fetch the binary version with 'python -m hvdkit.datasets cifar10 --data-dir {folder}'"
    if not folder.is_dir():
        return f"data_dir {folder} is not a folder; {remedy}"
    if (folder / "data_batch_1").exists() or (folder / "cifar-10-batches-py").exists():
        return f"{folder} holds the pickled CIFAR-10, which can run code when read and is refused; {remedy}"
    return f"{folder} has no {name}; {remedy}"
