"""Fetches a known set once for all processes that share a folder, checks it, and lets no half-written file be seen."""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Mapping
from http.client import HTTPException
from pathlib import Path
from typing import IO, cast

from filelock import FileLock
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

from hvdkit.datasets.sources import SOURCES, Source
from hvdkit.errors import DataError

_ATTEMPTS = 3
_FIRST_PAUSE = 1.0  # seconds before the second attempt; doubled before each further one
_SILENCE = 30.0  # seconds without a byte after which a server counts as gone
_CHUNK = 1 << 20


def download(name: str, data_dir: str | os.PathLike[str], url: str | None = None, progress: bool = False) -> bool:
    """Fetch the files of a set that are not yet in a folder.

    Any number of processes may call it at the same time: the first fetches and the others wait. If it fails, those
    that waited fail with its message and ask the server nothing.

    Args:
        name: ``mnist``, ``fashion_mnist`` or ``cifar10``.
        data_dir: The folder; made when it is missing.
        url: A mirror's folder that has the same files, in place of the set's own.
        progress: Show a bar on standard error.

    Returns:
        Whether this call fetched anything.

    Raises:
        DataError: The name is unknown, the folder cannot be written or has other files of these names, which are
            never overwritten, or the server does not give the right files.
    """
    if name not in SOURCES:
        raise DataError(f"no data set {name!r} to fetch; there are {', '.join(SOURCES)}")
    return fetch_source(name, SOURCES[name], Path(data_dir), url, progress)


def fetch_source(name: str, source: Source, folder: Path, url: str | None = None, progress: bool = False) -> bool:
    """Do what :func:`download` does, for any source."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        failure = _SharedFailure(folder / f".{name}.failed")
        with FileLock(folder / f".{name}.lock"):
            failure.raise_if_new()
            if _complete(source, folder):
                return False
            try:
                _fetch_all(source, folder, url or source.url, progress)
            except DataError as error:
                failure.leave(str(error))
                raise
            failure.clear()
            return True
    except OSError as error:
        raise DataError(f"cannot write {name} into {folder}: {error.strerror or error}") from None


class _SharedFailure:
    """Hands a failure to the processes that were already waiting for the lock, but not to later ones."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known = self._read()

    def _read(self) -> str | None:
        try:
            return self._path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    def raise_if_new(self) -> None:
        content = self._read()
        if content is not None and content != self._known:
            raise DataError(content.partition("\n")[2])

    def leave(self, message: str) -> None:
        # the identity makes two failures with the same message differ
        part = self._path.with_name(self._path.name + ".part")
        part.write_text(f"{uuid.uuid4().hex}\n{message}", encoding="utf-8")
        part.replace(self._path)

    def clear(self) -> None:
        self._path.unlink(missing_ok=True)


def _complete(source: Source, folder: Path) -> bool:
    present = [folder / name for name in source.members or source.files if (folder / name).exists()]
    for path in present:
        size = source.members.get(path.name)
        right = _has_sum(path, source.files[path.name]) if size is None else path.stat().st_size == size
        if not right:
            raise DataError(f"{path} is there but is another file; delete it, or choose another folder")
    return len(present) == len(source.members or source.files)


def _has_sum(path: Path, expected: str) -> bool:
    if not path.is_file():
        return False
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest() == expected


def _fetch_all(source: Source, folder: Path, url: str, progress: bool) -> None:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not progress) as bar:
        missing = {file: sha for file, sha in source.files.items() if not _has_sum(folder / file, sha)}
        for file, expected in missing.items():
            _fetch_file(f"{url.rstrip('/')}/{file}", folder / file, expected, bar)
    if source.members:
        for file in source.files:
            _unpack(folder / file, source.members)
        for file in missing:
            (folder / file).unlink()


def _fetch_file(url: str, target: Path, expected: str, bar: Progress) -> None:
    part = target.with_name(f".{target.name}.part")
    task = bar.add_task(target.name, total=None)
    try:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                _transfer(url, part, bar, task)
                break
            except (OSError, HTTPException, ValueError) as error:
                if attempt == _ATTEMPTS or not _may_pass(error):
                    raise DataError(_cannot_fetch(url, target.parent, error, attempt)) from None
                time.sleep(_FIRST_PAUSE * 2 ** (attempt - 1))
        if not _has_sum(part, expected):
            raise DataError(f"{url} is not the expected file: its sha256 differs from {expected}; try another --url")
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def _transfer(url: str, part: Path, bar: Progress, task: TaskID) -> None:
    with urllib.request.urlopen(url, timeout=_SILENCE) as response, part.open("wb") as file:
        length = response.headers.get("Content-Length")
        received = 0
        bar.update(task, total=int(length) if length else None, completed=0)
        while chunk := response.read(_CHUNK):
            file.write(chunk)
            received += len(chunk)
            bar.update(task, completed=received)
        if length and received != int(length):
            raise ConnectionError(f"the connection closed after {received} of {length} bytes")


def _may_pass(error: Exception) -> bool:
    if isinstance(error, urllib.error.HTTPError):
        return error.code >= 500 or error.code in (408, 429)
    if isinstance(error, urllib.error.URLError):
        return isinstance(error.reason, OSError)
    return isinstance(error, (ConnectionError, TimeoutError, HTTPException))


def _cannot_fetch(url: str, folder: Path, error: Exception, attempts: int) -> str:
    if isinstance(error, urllib.error.HTTPError):
        cause = f"HTTP {error.code} {error.reason}"
    else:
        cause = str(getattr(error, "reason", None) or error) or type(error).__name__
    times = "1 attempt" if attempts == 1 else f"{attempts} attempts"
    return f"cannot fetch {url}: {cause} ({times}); name a mirror with --url, or copy the file into {folder}"


def _unpack(archive: Path, members: Mapping[str, int]) -> None:
    try:
        with tarfile.open(archive) as tar:
            for entry in tar:
                name = entry.name.rpartition("/")[2]
                if entry.isfile() and entry.size == members.get(name):
                    part = archive.with_name(f".{name}.part")
                    content = cast(IO[bytes], tar.extractfile(entry))
                    with content, part.open("wb") as file:
                        shutil.copyfileobj(content, file, _CHUNK)
                    part.replace(archive.with_name(name))
    except tarfile.TarError as error:
        raise DataError(f"cannot unpack {archive}: {error}") from None
    missing = [name for name in members if not archive.with_name(name).is_file()]
    if missing:
        raise DataError(f"{archive} lacks {', '.join(missing)}")
