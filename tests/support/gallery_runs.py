"""Galleries of legitimate recipes in ``tests/verification/gallery``, and what ``hvdkit verify`` must say of each."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterable
from typing import Any

import pytest
from ranks import UNDER_KERAS_2, Combination
from verify_runs import ROOT, run_verify

GALLERY = ROOT / "tests" / "verification" / "gallery"


def recipes_in(framework: str) -> list[str]:
    """Return the recipes of a framework's gallery: its functions that are annotated with ``Recipe``."""
    tree = ast.parse((GALLERY / f"{framework}_recipes.py").read_text())
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return [node.name for node in found if isinstance(node.returns, ast.Name) and node.returns.id == "Recipe"]


def cases(framework: str, first: str | None, parameters: Iterable[Any], without: Iterable[str] = ()) -> list[Any]:
    """Return every recipe on every combination; all are slow but ``first`` on two processes, in one environment."""
    # of the environments with TensorFlow, one has nothing beside it
    alone = importlib.util.find_spec("torch") is None and not UNDER_KERAS_2
    found = []
    for entry in parameters:
        combination = entry.values[0]
        for name in recipes_in(framework):
            if name not in without:
                often = alone and name == first and combination.size == 2
                marks = [*entry.marks, *([] if often else [pytest.mark.slow])]
                found.append(pytest.param(name, combination, marks=marks, id=f"{name}-{entry.id}"))
    return found


def check_gallery_recipe(framework: str, name: str, combination: Combination) -> dict[str, Any]:
    """Check that a recipe is verified; return the report."""
    report, finished = run_verify(f"{GALLERY}/{framework}_recipes.py:{name}", combination, "--steps", "6")
    assert finished.code == 0, finished.stdout + finished.stderr
    assert report["passed"]
    twin = [check for check in report["checks"] if check["step"] == "distribute" and "of the twin" in check["claim"]]
    assert [check["passed"] for check in twin] == [True, True], "the twin was not compared"
    found: dict[str, Any] = report
    return found
