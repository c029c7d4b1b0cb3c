"""CIFAR-10's binary files."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from hvdkit import datasets
from hvdkit.errors import DataError

NAMES = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, name in enumerate(NAMES):
        random = np.random.default_rng(number)
        records = random.integers(0, 256, (4, 3073), dtype=np.uint8)
        records[:, 0] = (np.arange(4) + number) % 10
        (tmp_path / name).write_bytes(records.tobytes())
    return tmp_path


def test_reads_five_batches_as_nhwc(folder: Path) -> None:
    data = datasets.cifar10(folder)
    x, y = data.train
    assert x.shape == (20, 32, 32, 3)
    assert x.dtype == np.float32
    assert x.flags.c_contiguous
    assert y.dtype == np.int64
    assert y.tolist() == [0, 1, 2, 3, 1, 2, 3, 4, 2, 3, 4, 5, 3, 4, 5, 6, 4, 5, 6, 7]
    assert data.validation[0].shape == (4, 32, 32, 3)
    # record 1 of batch 2: green is the second of three planes
    record = (folder / NAMES[1]).read_bytes()[3073 : 2 * 3073]
    green = record[1 + 1024 + 5 * 32 + 7]
    assert x[5, 5, 7, 1] == pytest.approx((green / 255 - 0.4822) / 0.2435, abs=1e-5)


def test_without_normalising_pixels_stay_in_0_to_1(folder: Path) -> None:
    x, _ = datasets.cifar10(folder, normalise=False).train
    assert x.min() >= 0
    assert 0.9 < x.max() <= 1


def test_pickled_batches_are_refused_unread(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (Path.touch, (tmp_path / "ran",))

    (tmp_path / "data_batch_1").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(DataError, match=r"holds the pickled CIFAR-10.*python -m hvdkit\.datasets cifar10"):
        datasets.cifar10(tmp_path)
    assert not (tmp_path / "ran").exists()


def test_cut_short_missing_and_label_out_of_range(folder: Path) -> None:
    path = folder / NAMES[2]
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    with pytest.raises(DataError, match=r"data_batch_3\.bin is empty or cut short: 12291 bytes"):
        datasets.cifar10(folder)
    path.write_bytes(b"\x0a" + content[1:])
    with pytest.raises(DataError, match=r"data_batch_3\.bin: label 10 at index 0 is out of range"):
        datasets.cifar10(folder)
    path.unlink()
    with pytest.raises(DataError, match=r"has no data_batch_3\.bin; fetch the binary version"):
        datasets.cifar10(folder)
    with pytest.raises(DataError, match="is not a folder"):
        datasets.cifar10(folder / "none")
    with pytest.raises(DataError, match="cifar10 needs data_dir"):
        datasets.cifar10()
