"""Horovod's source archive: fetched with pip, checked, unpacked and edited."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from filelock import FileLock

from hvdkit.errors import BuildError
from hvdkit.process.environment import child_environment
from hvdkit.tools.horovod_build.diagnosis import explain

HOROVOD_VERSION = "0.28.1"
ARCHIVE_SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"
ARCHIVE_NAME = f"horovod-{HOROVOD_VERSION}.tar.gz"
_FETCH_SECONDS = 600


def fetch(cache: Path) -> Path:
    """Return the source archive in the cache; pip downloads it if it is not there, and checks it.

    Raises:
        BuildError: pip cannot download it, or its checksum is wrong.
    """
    cache.mkdir(parents=True, exist_ok=True)
    archive = cache / ARCHIVE_NAME
    with FileLock(cache / f"{ARCHIVE_NAME}.lock"):
        if archive.is_file() and _sha256(archive) == ARCHIVE_SHA256:
            return archive
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            os.replace(_download(Path(folder)), archive)
    return archive


def unpack(archive: Path, folder: Path) -> Path:
    """Unpack the archive and return the source tree."""
    with tarfile.open(archive) as tar:
        # the argument `filter` is missing from the first releases of Python 3.10 and 3.11
        tar.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)
        tar.extractall(folder)
    return folder / f"horovod-{HOROVOD_VERSION}"


def _download(folder: Path) -> Path:
    # pip asks the archive's setup.py for its metadata, without isolation so that no build tools are fetched; with
    # a hash it checks the archive before that
    wanted = folder / "requirements.txt"
    wanted.write_text(f"horovod=={HOROVOD_VERSION} --hash=sha256:{ARCHIVE_SHA256}\n")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-build-isolation", "--require-hashes"]
    command += ["--no-binary", "horovod", "--dest", str(folder), "--requirement", str(wanted)]
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=_FETCH_SECONDS, env=child_environment()
        )
    except subprocess.TimeoutExpired:
        raise BuildError(
            f"pip did not download horovod {HOROVOD_VERSION} within {_FETCH_SECONDS} s; check the network"
        ) from None
    if result.returncode != 0 or not (folder / ARCHIVE_NAME).is_file():
        reason = explain(result.stdout + result.stderr) or "pip download failed; run it by hand to see why"
        raise BuildError(f"cannot fetch horovod {HOROVOD_VERSION}: {reason}")
    return folder / ARCHIVE_NAME


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
