"""Images in class folders."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hvdkit import datasets
from hvdkit.errors import DataError

GREY = (128, 128, 128)


def write(file: Path, colour: tuple[int, ...] = GREY, size: tuple[int, int] = (6, 4), mode: str = "RGB") -> Path:
    """Write one image of width x height."""
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, colour if mode == "RGB" else colour[0]).save(file)
    return file


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for part, count in (("train", 3), ("val", 2)):
        for name, colour in (("bird", (255, 0, 0)), ("cat", (0, 255, 0))):
            for number in range(count):
                write(tmp_path / part / name / f"{number}.png", colour)
    return tmp_path


def test_reads_train_and_val_with_classes_in_order(folder: Path) -> None:
    write(folder / "train" / "cat" / "more" / "deep.bmp", (0, 0, 255))
    (folder / "train" / "cat" / "notes.txt").write_text("not an image")
    (folder / "train" / ".cache").mkdir()
    data = datasets.image_folder(folder)
    x, y = data.train
    assert (x.shape, x.dtype, y.dtype, data.classes) == ((7, 4, 6, 3), np.float32, np.int64, 2)
    assert y.tolist() == [0, 0, 0, 1, 1, 1, 1]
    red, blue = x[0, 0, 0], x[6, 0, 0]
    mean, deviation = np.array((0.485, 0.456, 0.406)), np.array((0.229, 0.224, 0.225))
    np.testing.assert_allclose(red, ((1, 0, 0) - mean) / deviation, rtol=1e-5)
    np.testing.assert_allclose(blue, ((0, 0, 1) - mean) / deviation, rtol=1e-5)
    assert data.validation[0].shape == (4, 4, 6, 3)
    assert data.validation[1].tolist() == [0, 0, 1, 1]
    datasets.check(data, rank=4)


def test_class_folders_alone_are_training_data(folder: Path) -> None:
    data = datasets.image_folder(folder / "train", normalise=False)
    assert data.validation is None
    assert sorted(set(data.train[0].ravel().tolist())) == [0, 1]


def test_size_scales_and_cuts_out_the_middle(tmp_path: Path) -> None:
    for name in ("a", "b"):
        image = Image.new("L", (60, 20), 0)
        image.paste(255, (20, 0, 40, 20))  # the middle third is white
        (tmp_path / name).mkdir()
        image.save(tmp_path / name / "wide.png")
    write(tmp_path / "b" / "zz.jpg", size=(9, 9))
    x, y = datasets.image_folder(tmp_path, 10, normalise=False).train
    assert x.shape == (3, 10, 10, 3)
    assert x[0, :, 1:9].min() > 0.99
    assert y.tolist() == [0, 1, 1]
    assert datasets.image_folder(tmp_path, (5, 8)).train[0].shape == (3, 5, 8, 3)


def test_mixed_sizes_are_refused_by_name(folder: Path) -> None:
    odd = write(folder / "train" / "cat" / "odd.png", size=(5, 4))
    with pytest.raises(DataError, match=rf"{odd} has 4 x 5 pixels, but .*0\.png has 4 x 6; give a size"):
        datasets.image_folder(folder)


def test_corrupt_and_truncated_files_are_refused_by_name(folder: Path) -> None:
    file = folder / "train" / "cat" / "1.png"
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match=f"{file} cannot be read as an image: "):
        datasets.image_folder(folder)
    file.write_bytes(b"hello")
    with pytest.raises(DataError, match=f"{file} cannot be read as an image: cannot identify"):
        datasets.image_folder(folder)


def test_what_is_missing_is_named(folder: Path) -> None:
    with pytest.raises(DataError, match=r"image folder .*none cannot be read: No such file or directory"):
        datasets.image_folder(folder / "none")
    (folder / "val" / "dog").mkdir()
    with pytest.raises(DataError, match=r"val/dog is no class of the training images, which are bird, cat"):
        datasets.image_folder(folder)
    (folder / "val" / "dog").rmdir()
    for file in (folder / "train" / "cat").iterdir():
        file.unlink()
    with pytest.raises(DataError, match=r"train/cat has no images .*; fill or remove it"):
        datasets.image_folder(folder)
    (folder / "train" / "cat").rmdir()
    with pytest.raises(DataError, match=r"train has 1 class folder\(s\)"):
        datasets.image_folder(folder)
    (folder / "empty").mkdir()
    with pytest.raises(DataError, match=r"empty has 0 class folder\(s\)"):
        datasets.image_folder(folder / "empty")
    with pytest.raises(DataError, match="size is"):
        datasets.image_folder(folder / "val", 0)


def test_more_images_than_memory_are_refused_before_they_are_read(folder: Path) -> None:
    pixels = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // (4 * 3 * 6)
    side = int(pixels**0.5) + 100
    with pytest.raises(DataError, match="GB in each process, but this machine has"):
        datasets.image_folder(folder, side)
