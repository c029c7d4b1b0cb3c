"""Reads files in MNIST's IDX format.

Two zero bytes, a type code, the number of dimensions, the dimensions as big-endian 32-bit numbers, the values.
"""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hvdkit.datasets.checks import check_labels
from hvdkit.errors import DataError

Split = tuple[NDArray[np.uint8], NDArray[np.int64]]

_GZIP_MAGIC = b"\x1f\x8b"
_UNSIGNED_BYTE = 0x08


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """Read one IDX file of unsigned bytes.

    Args:
        path: The file, raw or compressed with gzip (told apart by their first bytes, not by the name).
        dimensions: How many dimensions it must have: 3 for images, 1 for labels.

    Returns:
        The values, in the shape that the header states; read-only.

    Raises:
        DataError: The file cannot be read, is not IDX, has another type or number of dimensions, is empty, or is
            shorter or longer than its header says.
    """
    content = _content(path)
    shape = _shape(path, content, dimensions)
    header = 4 + 4 * dimensions
    expected = header + math.prod(shape)
    if len(content) != expected:
        how = "cut short" if len(content) < expected else "too long"
        raise DataError(
            f"{path} is {how}: {len(content)} bytes where its header, shape {shape}, needs {expected}; "
            "delete it and fetch it again"
        )
    if expected == header:
        raise DataError(f"{path} is empty: its header states the shape {shape}")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def read_split(folder: Path, prefix: str, classes: int) -> Split:
    """Read the images and labels of one part of a set in MNIST's format.

    Args:
        folder: Where the files are.
        prefix: ``train`` or ``t10k``, with which both names begin.
        classes: How many classes there are.

    Returns:
        Images of shape (samples, height, width) and labels of shape (samples,).

    Raises:
        DataError: A file is missing or damaged, the two disagree in length, or a label is out of range.
    """
    image_file = _find(folder, prefix, "images", "idx3")
    label_file = _find(folder, prefix, "labels", "idx1")
    images = read_idx(image_file, 3)
    labels = read_idx(label_file, 1).astype(np.int64)
    if len(images) != len(labels):
        raise DataError(f"{image_file} has {len(images)} images but {label_file.name} has {len(labels)} labels")
    check_labels(labels, classes, str(label_file))
    return images, labels


def _content(path: Path) -> bytes:
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if content.startswith(_GZIP_MAGIC) else content
    except EOFError:
        raise DataError(f"{path} is cut short: its compressed data ends early; delete it and fetch it again") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path} is damaged: {error}; delete it and fetch it again") from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None


def _shape(path: Path, content: bytes, dimensions: int) -> tuple[int, ...]:
    header = 4 + 4 * dimensions
    if content[:2] != b"\0\0":
        raise DataError(f"{path} is not an IDX file: it starts with {content[:4].hex() or 'nothing'}")
    if len(content) < header:
        raise DataError(
            f"{path} is cut short: {len(content)} bytes, less than its header; delete it and fetch it again"
        )
    if content[2] != _UNSIGNED_BYTE:
        raise DataError(f"{path} holds values of type 0x{content[2]:02x}; only unsigned bytes (0x08) are read")
    if content[3] != dimensions:
        raise DataError(f"{path} has {content[3]} dimensions where {dimensions} are expected; is it misnamed?")
    return tuple(int(length) for length in np.frombuffer(content, ">u4", dimensions, offset=4))


def _find(folder: Path, prefix: str, kind: str, suffix: str) -> Path:
    names = [f"{prefix}-{kind}{joint}{suffix}-ubyte{ending}" for joint in "-." for ending in ("", ".gz")]
    for name in names:
        if (folder / name).is_file():
            return folder / name
    if not folder.is_dir():
        raise DataError(f"data_dir {folder} is not a folder")
    raise DataError(f"{folder} has none of {', '.join(names)}")
