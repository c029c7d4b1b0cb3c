"""A folder of images, ``train/CLASS/*.jpg`` and ``val/CLASS/*.jpg``, as torch data sets."""

from __future__ import annotations

from pathlib import Path

from torchvision import transforms
from torchvision.datasets import ImageFolder
from torchvision.datasets.folder import IMG_EXTENSIONS

from hvdkit.errors import DataError

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def image_folders(directory: Path, image_size: int) -> tuple[ImageFolder, ImageFolder]:
    """Return the training and the validation images, cut to ``image_size`` pixels a side.

    Raises:
        DataError: A folder is missing or not sorted by class, or the two have other classes.
    """
    for name in ("train", "val"):
        _check_sorted(directory / name)
    to_tensor = [transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
    crops = [transforms.RandomResizedCrop(image_size), transforms.RandomHorizontalFlip()]
    center = [transforms.Resize(image_size * 256 // 224), transforms.CenterCrop(image_size)]
    training = ImageFolder(str(directory / "train"), transforms.Compose([*crops, *to_tensor]))
    validation = ImageFolder(str(directory / "val"), transforms.Compose([*center, *to_tensor]))
    if training.classes != validation.classes:
        apart = sorted(set(training.classes) ^ set(validation.classes))
        raise DataError(f"{directory}: train and val have different classes, among them {', '.join(apart[:3])}")
    return training, validation


def _check_sorted(folder: Path) -> None:
    if not folder.is_dir():
        raise DataError(f"{folder} is missing; it should hold one folder of images for each class")
    if any(entry.is_dir() for entry in folder.iterdir()):
        return
    if any(entry.suffix.lower() in IMG_EXTENSIONS for entry in folder.iterdir()):
        raise DataError(
            f"{folder} holds images but no class folders; sort them with: "
            f"python -m hvdkit.datasets sort-val {folder} LABELS"
        )
    raise DataError(f"{folder} is empty; it should hold one folder of images for each class")
