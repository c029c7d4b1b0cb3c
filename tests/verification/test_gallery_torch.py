"""``hvdkit verify`` on legitimate recipes of many kinds in torch: no false alarm."""

from __future__ import annotations

from pathlib import Path

import pytest
from ranks import on
from verify_runs import run_verify

GALLERY = str(Path(__file__).parent / "gallery" / "torch_recipes.py")
QUICK = ("detector", "recurrent", "stream")
NAMES = (
    "cnn",
    "recurrent",
    "transformer",
    "sparse",
    "factors",
    "language_model",
    "vae",
    "detector",
    "detector_without_workers",
    "synchronised",
    "stream",
    "sentences",
)


def cases():
    for entry in [*on("torch", ("torch",), (2,)), *on("torch", ("torch", "mpi"), (3,))]:
        combination = entry.values[0]
        for name in NAMES:
            quick = name in QUICK and combination.size == 2
            marks = [*entry.marks, *([] if quick else [pytest.mark.slow])]
            yield pytest.param(name, combination, marks=marks, id=f"{name}-{combination.engine}-{combination.size}")


@pytest.mark.parametrize(("name", "combination"), list(cases()))
def test_a_legitimate_recipe_is_verified(name, combination):
    report, finished = run_verify(f"{GALLERY}:{name}", combination, "--steps", "6")
    assert finished.code == 0, finished.stdout + finished.stderr
    checks = [check for check in report["checks"] if check["step"] in ("recipe", "shard")]
    assert all(check["passed"] for check in checks if check["step"] == "shard"), checks
    assert any("same data" in check["claim"] and check["passed"] for check in checks)
