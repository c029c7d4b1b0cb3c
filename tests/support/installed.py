"""Marks of tests that need a package which not every environment has."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest


def needs(package: str) -> Any:
    """Skip a test, with the reason, where a package is not installed."""
    missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"{package} is not installed")
