from __future__ import annotations

from pathlib import Path

import pytest

from hvdkit.environment import cache_dir
from hvdkit.horovod_build.source import fetch, unpack


@pytest.fixture(scope="session")
def archive() -> Path:
    """The real source archive, through the product's own fetch (pip, or the user's cache)."""
    return fetch(Path(cache_dir()) / "horovod")


@pytest.fixture
def tree(archive: Path, tmp_path: Path) -> Path:
    """A fresh copy of Horovod's real source."""
    return unpack(archive, tmp_path)
