"""ImageNet's validation images come in one flat folder; this moves them into one folder per class."""

from __future__ import annotations

from pathlib import Path

from hvdkit.errors import DataError

_ENDINGS = {".jpeg", ".jpg", ".png"}


def sort_validation(folder: Path, labels: Path) -> int:
    """Move the images of a flat folder into class folders; return how many were moved.

    Nothing is moved unless every image has a label. Images that are sorted already stay where they are.

    Args:
        folder: Holds the images.
        labels: A text file; each line begins with an image's name, with or without its ending, and its class, divided
            by a comma or blanks. What follows is ignored, and so is a line whose name is no image's.

    Raises:
        DataError: The folder or the file is missing, or an image has no label.
    """
    if not folder.is_dir():
        raise DataError(f"{folder} is no folder")
    classes = _read_labels(labels)
    images = sorted(path for path in folder.iterdir() if path.is_file() and path.suffix.lower() in _ENDINGS)
    unknown = [path.name for path in images if path.stem not in classes]
    if unknown:
        raise DataError(f"{labels} has no class for {len(unknown)} images, among them {', '.join(unknown[:3])}")
    for path in images:
        target = folder / classes[path.stem]
        target.mkdir(exist_ok=True)
        path.rename(target / path.name)
    return len(images)


def _read_labels(path: Path) -> dict[str, str]:
    if not path.is_file():
        raise DataError(f"{path} does not exist; give a text file with an image's name and its class on each line")
    classes = {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        words = line.replace(",", " ").split()
        if not words:
            continue
        if len(words) < 2 or "/" in words[1] or words[1] in (".", ".."):
            raise DataError(f"{path}, line {number}: {line[:60]!r} should be an image's name and its class")
        classes[Path(words[0]).stem] = words[1]
    return classes
