"""``python -m hvdkit.datasets sort-val``: nothing is moved unless every image has a class."""

import subprocess
import sys

import pytest
from limits import HANG_SECONDS

pytestmark = pytest.mark.processes


def sort_val(*arguments):
    command = [sys.executable, "-m", "hvdkit.datasets", "sort-val", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS, check=False)


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.fixture
def flat(tmp_path):
    """A flat folder of three images."""
    folder = tmp_path / "val"
    folder.mkdir()
    for number in (1, 2, 3):
        (folder / f"VAL_{number}.JPEG").write_bytes(b"image")
    return folder


@pytest.mark.parametrize(
    "text",
    [
        "VAL_1.JPEG n01\nVAL_2.JPEG n02\nVAL_3.JPEG n01\n",
        "ImageId,PredictionString\nVAL_1,n01 85 1 499\nVAL_2,n02 1 2 3\n\nVAL_3,n01 5 6\nVAL_4,n09 1\n",
    ],
)
def test_images_are_moved_into_class_folders(flat, tmp_path, text):
    labels = tmp_path / "labels"
    labels.write_text(text)
    done = sort_val(flat, labels)
    assert done.returncode == 0, done.stderr
    assert files(flat) == ["n01/VAL_1.JPEG", "n01/VAL_3.JPEG", "n02/VAL_2.JPEG"]
    assert sort_val(flat, labels).stdout.startswith("0 images moved")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("VAL_1.JPEG n01\nVAL_2.JPEG n02\n", "has no class for 1 images, among them VAL_3.JPEG"),
        ("VAL_1.JPEG n01\nVAL_2.JPEG\n", "line 2: 'VAL_2.JPEG' should be an image's name and its class"),
        ("VAL_1.JPEG ../elsewhere\n", "line 1"),
    ],
)
def test_nothing_is_moved_when_a_label_is_missing_or_wrong(flat, tmp_path, text, words):
    labels = tmp_path / "labels"
    labels.write_text(text)
    before = files(flat)
    done = sort_val(flat, labels)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("hvdkit: error: ")
    assert words in line
    assert files(flat) == before
