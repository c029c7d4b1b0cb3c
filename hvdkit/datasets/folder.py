"""Images in class folders, as photographs are often kept; read by Pillow, into arrays."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvdkit.datasets.pixels import Scale, to_float
from hvdkit.errors import DataError
from hvdkit.recipe.declaration import Data

# of ImageNet's photographs, as is usual for networks of this kind
SCALE: Scale = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
ENDINGS = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")

_Size = tuple[int, int]


def image_folder(path: str | os.PathLike[str], size: int | _Size | None = None, normalise: bool = True) -> Data:
    """Read images that lie in one folder per class, in ``path`` itself or in ``path/train`` and ``path/val``.

    All images are read into memory as float32: those of 224 x 224 need 0.6 MB each.

    Args:
        path: The folder. Classes are numbered by their folders' names in order; folders within them are searched too.
            Without ``val`` there are no validation data.
        size: A side, or (height, width), in pixels: images are scaled to cover it, and their middle is cut out. None
            keeps the size, which must then be the same for all.
        normalise: Subtract the mean (0.485, 0.456, 0.406) and divide by the deviation (0.229, 0.224, 0.225) of the red,
            green and blue pixels in 0..1; otherwise the pixels stay in 0..1.

    Returns:
        Images float32 of shape (samples, height, width, 3) and labels int64; grey images are made red, green and blue.

    Raises:
        DataError: There is no folder, no image, only one class, a class without images, a class in ``val`` that is not
            in ``train``, an image that cannot be read, or images of several sizes; they need more memory than there is;
            or Pillow is not installed.
    """
    folder = Path(path)
    train = folder / "train" if (folder / "train").is_dir() else folder
    held = folder / "val" if train != folder and (folder / "val").is_dir() else None
    classes = _subfolders(train)
    if len(classes) < 2:
        raise DataError(f"{train} has {len(classes)} class folder(s) with images; two or more are needed")
    parts = [_files(train, classes), _files(held, classes)] if held is not None else [_files(train, classes)]
    reader = _reader((size, size) if isinstance(size, int) else size, parts)
    arrays = [(_stack(files, reader, normalise), labels) for files, labels in parts]
    return Data(train=arrays[0], validation=arrays[1] if held is not None else None, classes=len(classes))


def _subfolders(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    except OSError as error:
        raise DataError(f"image folder {folder} cannot be read: {error.strerror or error}") from None


def _files(folder: Path, classes: list[str]) -> tuple[list[Path], NDArray[np.int64]]:
    """Return the image files of all classes in order, and their labels."""
    files: list[Path] = []
    labels: list[int] = []
    for name in _subfolders(folder):
        if name not in classes:
            raise DataError(f"{folder / name} is no class of the training images, which are {', '.join(classes)}")
        found = sorted(file for file in (folder / name).rglob("*") if file.suffix.lower() in ENDINGS)
        if not found:
            raise DataError(f"{folder / name} has no images ({', '.join(ENDINGS)}); fill or remove it")
        files += found
        labels += [classes.index(name)] * len(found)
    if not files:
        raise DataError(f"{folder} has no class folders")
    return files, np.array(labels, np.int64)


def _reader(size: _Size | None, parts: list[tuple[list[Path], Any]]) -> Callable[[Path], NDArray[np.uint8]]:
    """Return what reads one file, after a look at the memory that all of them need."""
    try:
        from PIL import Image, ImageOps
    except ImportError:
        raise DataError("image_folder needs Pillow: pip install 'hvdkit[examples]'") from None
    if size is not None and min(size) < 1:
        raise DataError(f"image_folder: size is {size}; it must be 1 pixel or more")

    def read(file: Path) -> NDArray[np.uint8]:
        try:
            with Image.open(file) as image:
                colours = image.convert("RGB")
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise DataError(f"{file} cannot be read as an image: {' '.join(str(error).split())}") from None
        return np.asarray(colours if size is None else ImageOps.fit(colours, (size[1], size[0])))

    first = parts[0][0][0]
    shape = read(first).shape if size is None else (*size, 3)
    needed = 4 * math.prod(shape) * sum(len(files) for files, _ in parts)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > memory:
        raise DataError(
            f"the images in {first.parent.parent} need {needed / 1e9:.0f} GB in each process, but this machine has "
            f"{memory / 1e9:.0f} GB; give a smaller size, or a data set of the framework's own"
        )
    return read


def _stack(files: list[Path], read: Callable[[Path], NDArray[np.uint8]], normalise: bool) -> NDArray[np.float32]:
    images: NDArray[np.float32] | None = None
    for number, file in enumerate(files):
        pixels = read(file)
        if images is None:
            images = np.empty((len(files), *pixels.shape), np.float32)
        if pixels.shape != images.shape[1:]:
            raise DataError(
                f"{file} has {pixels.shape[0]} x {pixels.shape[1]} pixels, but {files[0]} has {images.shape[1]} x "
                f"{images.shape[2]}; give a size"
            )
        images[number] = to_float(pixels, SCALE if normalise else None)
    assert images is not None
    return images
