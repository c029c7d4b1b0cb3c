"""What the flags for GPUs make of a recipe."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
from example_runs import ROOT

from hvdkit.errors import RecipeError


@pytest.fixture
def options(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of the examples."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    import gpu_options

    return gpu_options


@pytest.fixture
def gpu(monkeypatch):
    """Puts a torch in place that sees a GPU, or none."""

    def put(available):
        torch = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: available))
        monkeypatch.setitem(sys.modules, "torch", torch)

    return put


def given(**changes):
    return {"precision": "auto", "compiled": False, "cuda_graphs": "auto", **changes}


@pytest.mark.parametrize(
    ("framework", "available", "on_gpu", "precision"),
    [
        ("torch", True, "bf16", "bf16"),
        ("torch", True, "fp32", "fp32"),
        ("torch", False, "bf16", "fp32"),
        ("tf", True, "bf16", "fp32"),
        ("keras", True, "bf16", "fp32"),
    ],
)
def test_precision_by_itself(options, gpu, framework, available, on_gpu, precision):
    gpu(available)
    assert options.gpu_fields(given(), framework, on_gpu)["precision"] == precision


def test_precision_without_torch_is_left_to_the_recipe(options, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert options.gpu_fields(given(), "torch", "bf16")["precision"] == "fp32"


def test_what_is_asked_for_counts(options, gpu):
    gpu(True)
    asked = given(precision="fp16", compiled=True, cuda_graphs="on")
    assert options.gpu_fields(asked, "torch", "bf16") == {"precision": "fp16", "compile": True, "cuda_graphs": True}
    assert options.gpu_fields(given(cuda_graphs="off"), "torch", "bf16")["cuda_graphs"] is False
    assert options.gpu_fields(given(), "torch", "bf16")["cuda_graphs"] == "auto"


@pytest.mark.parametrize("framework", ["tf", "keras"])
def test_what_only_torch_can_do(options, framework):
    with pytest.raises(RecipeError, match=rf"^--compile belongs to --framework torch, not to {framework}$"):
        options.gpu_fields(given(compiled=True), framework, "fp32")
    with pytest.raises(RecipeError, match=rf"^--cuda-graphs on belongs to --framework torch, not to {framework}$"):
        options.gpu_fields(given(cuda_graphs="on"), framework, "fp32")
    assert options.gpu_fields(given(cuda_graphs="off"), framework, "fp32")["cuda_graphs"] is False
