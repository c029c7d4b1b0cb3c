"""A folder of its own for each process, in which the script finds what it finds in the user's."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# more entries than this are not looked at one by one
_ENTRIES = 2000
# libraries in C write these, so that a link would let them write through to the user's own file
_WRITTEN_IN_C = (".pt", ".pth", ".ckpt", ".h5", ".hdf5", ".keras", ".tar", ".bin", ".pb", ".index", ".safetensors")
_LEFT_OUT = ("__pycache__",)


class Scratch:
    """The folder; files are links to the user's until something writes them.

    Attributes:
        folder: Where it is.
    """

    def __init__(self, home: str, folder: Path) -> None:
        self.folder = folder
        self._left = _ENTRIES
        folder.mkdir(parents=True)
        self._mirror(Path(home), folder)
        self._first = set(self._files())
        self._times = {name: _stamp(folder / name) for name in self._first}
        self._watching = True

    def enter(self) -> None:
        """Make it the working directory of this process."""
        os.chdir(self.folder)
        sys.addaudithook(self._hear)

    def written(self) -> list[str]:
        """Return the files that are new or changed."""
        self._watching = False
        names = sorted(self._files())
        return [name for name in names if name not in self._first or _stamp(self.folder / name) != self._times[name]]

    def let_go(self, path: Any, keep: bool = False) -> None:
        """Take a link away before a file is written in its place; ``keep`` leaves a copy there."""
        try:
            place = Path(os.fspath(path))
            if place.is_symlink() and self.folder in place.absolute().parents:
                source = place.resolve()
                place.unlink()
                if keep and source.is_file():
                    shutil.copyfile(source, place)
        except (TypeError, ValueError, OSError):
            return  # no path, or nothing that could be written either

    def _mirror(self, source: Path, target: Path) -> None:
        for entry in sorted(source.iterdir()) if os.access(source, os.R_OK) else ():
            if entry.name in _LEFT_OUT:
                continue
            self._left -= 1
            if entry.is_dir() and not entry.is_symlink() and not entry.name.startswith(".") and self._left > 0:
                (target / entry.name).mkdir()
                self._mirror(entry, target / entry.name)
            elif entry.is_file() and (entry.suffix in _WRITTEN_IN_C or ".data-" in entry.name):
                shutil.copyfile(entry, target / entry.name)
            else:
                (target / entry.name).symlink_to(entry)

    def _files(self) -> Iterator[str]:
        for folder, _, names in os.walk(self.folder):
            for name in names:
                yield str(Path(folder, name).relative_to(self.folder))

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" or not self._watching or not isinstance(arguments[0], (str, bytes, os.PathLike)):
            return
        flags = arguments[2] if isinstance(arguments[2], int) else 0
        if not flags & (os.O_WRONLY | os.O_RDWR):
            return
        self.let_go(arguments[0], keep=not flags & os.O_TRUNC)


def _stamp(path: Path) -> tuple[int, int, bool]:
    try:
        found = path.lstat()
    except OSError:
        return 0, 0, False
    return found.st_mtime_ns, found.st_size, path.is_symlink()
