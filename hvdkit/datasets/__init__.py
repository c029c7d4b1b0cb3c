"""Data sets as neutral arrays, checked when they are read; nothing here downloads by itself.

The names below are imported when they are first used. ``python -m hvdkit.datasets NAME --data-dir D`` fetches a set.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_HOME = {
    "mnist": "hvdkit.datasets.digits",
    "fashion_mnist": "hvdkit.datasets.digits",
    "cifar10": "hvdkit.datasets.cifar",
    "image_folder": "hvdkit.datasets.folder",
    "synthetic": "hvdkit.datasets.synthesis",
    "check": "hvdkit.datasets.checks",
    "download": "hvdkit.datasets.fetch",
    "prepare_datasets": "hvdkit.training.prepare",
}

__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'hvdkit.datasets' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


if TYPE_CHECKING:
    from hvdkit.datasets.checks import check as check
    from hvdkit.datasets.cifar import cifar10 as cifar10
    from hvdkit.datasets.digits import fashion_mnist as fashion_mnist
    from hvdkit.datasets.digits import mnist as mnist
    from hvdkit.datasets.fetch import download as download
    from hvdkit.datasets.folder import image_folder as image_folder
    from hvdkit.datasets.synthesis import synthetic as synthetic
