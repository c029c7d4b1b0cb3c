"""Runs that several tests look at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from example_runs import Summaries, write_digits


@pytest.fixture(scope="session")
def summaries(tmp_path_factory: pytest.TempPathFactory, pools: Any) -> Summaries:
    return Summaries(tmp_path_factory.mktemp("summaries"), pools)


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """256 digits to train and 64 to validate, on which a run takes little more than the imports."""
    return write_digits(tmp_path_factory.mktemp("digits"))
