"""Fixtures: a small set in MNIST's format, and a local server."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from dataset_files import digits, idx_bytes
from dataset_server import CountingServer
from limits import HANG_SECONDS


@pytest.fixture
def write_mnist(tmp_path: Path) -> Callable[..., Path]:
    """Write a set of 30 + 20 images in MNIST's format; returns its folder."""

    def write(joint: str = "-", compressed: bool = False) -> Path:
        folder = tmp_path / f"digits{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        for prefix, samples in (("train", 30), ("t10k", 20)):
            images, labels = digits(samples)
            for name, values in ((f"{prefix}-images{joint}idx3", images), (f"{prefix}-labels{joint}idx1", labels)):
                content = idx_bytes(values)
                path = folder / (f"{name}-ubyte" + (".gz" if compressed else ""))
                path.write_bytes(gzip.compress(content) if compressed else content)
        return folder

    return write


@pytest.fixture
def server(tmp_path: Path) -> Iterator[CountingServer]:
    """Run a counting server on the folder ``tmp_path/served``."""
    folder = tmp_path / "served"
    folder.mkdir()
    server = CountingServer(folder)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join(timeout=HANG_SECONDS)
