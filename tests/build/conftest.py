from __future__ import annotations

from pathlib import Path

import pytest

from hvdkit.process.environment import cache_dir
from hvdkit.tools.horovod_build.source import fetch, unpack


@pytest.fixture(scope="session")
def needs_wheel() -> None:
    """Skips where the package ``wheel`` is missing, without which pip cannot read a source archive."""
    pytest.importorskip("wheel")


@pytest.fixture(scope="session")
def archive(needs_wheel: None) -> Path:
    """The real source archive, through the product's own fetch (pip, or the user's cache)."""
    return fetch(Path(cache_dir()) / "horovod")


@pytest.fixture
def tree(archive: Path, tmp_path: Path) -> Path:
    """A fresh copy of Horovod's real source."""
    return unpack(archive, tmp_path)
