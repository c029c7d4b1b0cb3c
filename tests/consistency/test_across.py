"""``hvdkit verify --across``: what is the same in several frameworks, and what is not."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from limits import HANG_SECONDS
from rank_jobs import environment
from verify_runs import MUTANTS_FILE, ROOT

HERE = [name for name, package in {"torch": "torch", "tf": "tensorflow"}.items() if importlib.util.find_spec(package)]
pytestmark = [
    pytest.mark.processes,
    pytest.mark.tf,
    pytest.mark.skipif("tf" not in HERE, reason="TensorFlow is not installed"),
]


ACROSS_FILE = str(Path(__file__).with_name("across_recipes.py"))


def compare(recipe: str, frameworks: str, *flags: str):
    command = [sys.executable, "-m", "hvdkit", "verify", recipe, "--across", frameworks, "--json", *flags]
    finished = subprocess.run(
        command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=HANG_SECONDS
    )
    return (json.loads(finished.stdout) if finished.stdout else None), finished


def sizes(report):
    return {check["step"]: check["size"] for check in report["checks"]}


@pytest.mark.skipif(len(HERE) < 2, reason="needs torch and TensorFlow")
def test_a_net_trains_alike_in_two_frameworks():
    report, finished = compare(f"{ACROSS_FILE}:alike", "torch,tf")
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert report["passed"]
    assert sizes(report)["start"] == sizes(report)["samples"] == 0.0
    assert sizes(report)["loss"] < 1e-5
    assert sizes(report)["weights"] < 1e-5


@pytest.mark.skipif(len(HERE) < 2, reason="needs torch and TensorFlow")
def test_defaults_that_differ_are_named_with_their_arguments():
    report, finished = compare(f"{ACROSS_FILE}:defaults", "torch,tf", "--steps", "4")
    assert finished.returncode == 1, finished.stdout + finished.stderr
    assert report["fault"]["step"] == "arguments"
    found = {check["step"]: check["found"] for check in report["checks"]}
    for words in (
        "AdamW: weight_decay=0.004 in tf, weight_decay=0.01 in torch",
        "AdamW: epsilon=1e-07 in tf, eps=1e-08 in torch",
        "padding=same in tf, padding=[1, 1] in torch",
        "epsilon=0.001 in tf, eps=1e-05 in torch",
        "momentum=0.99 in tf, momentum=0.1 in torch",
        "negative_slope=0.3 in tf, negative_slope=0.01 in torch",
        "approximate=False in tf, approximate=tanh in torch",
        "rate=0.2 in tf, p=0.5 in torch",
    ):
        assert words in found["arguments"]
    assert "LayerNorm 'layer_normalization': epsilon=0.001 in tf, eps=1e-05 in torch" in found["arguments"]
    assert "conv2d/bias is 0 in tf, 0/bias is drawn" in found["initialisers"]


@pytest.mark.slow
def test_the_example_trains_alike_in_all_frameworks():
    report, finished = compare("examples/mnist.py", ",".join([*HERE, "keras"]))
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert report["exemptions"] == [
        "Adam's eps: Keras adds it before the bias correction, torch after it; verified with 1e-12"
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "step"),
    [
        ('optimizer={"tf": lambda: keras().optimizers.SGD(0.02), "keras": hvdkit.SGD(lr=0.05)}', "rate"),
        ('loss={"tf": lambda y, p: (p[:, 0] - 1.0) ** 2, "keras": "sparse_categorical_crossentropy"}', "loss"),
        ('data={"tf": mutant_recipes.data, "keras": shuffled}', "samples"),
    ],
)
def test_what_differs_is_named(change, step, tmp_path: Path):
    script = tmp_path / "differs.py"
    script.write_text(
        "import sys\n"
        f"sys.path.insert(0, {str(Path(MUTANTS_FILE).parent)!r})\n"
        "import hvdkit, mutant_recipes, mutants\n"
        "from hvdkit.keras_common.compat import keras\n"
        "def shuffled():\n"
        "    data = mutant_recipes.data()\n"
        "    return hvdkit.Data((data.train[0][::-1].copy(), data.train[1][::-1].copy()))\n"
        f"recipe = mutants.recipe.replace({change})\n"
    )
    report, finished = compare(str(script), "tf,keras")
    assert finished.returncode == 1, finished.stdout + finished.stderr
    assert report["fault"]["step"] == step, report["fault"]


@pytest.mark.slow
def test_models_that_share_no_weights_are_one_line(tmp_path: Path):
    script = tmp_path / "differs.py"
    script.write_text(
        "import sys\n"
        f"sys.path.insert(0, {str(Path(MUTANTS_FILE).parent)!r})\n"
        "import mutants\n"
        "from hvdkit.keras_common.compat import keras\n"
        "def other():\n"
        "    return keras().Sequential([keras().Input((6,)), keras().layers.Dense(3)])\n"
        "recipe = mutants.recipe.replace(model={'tf': mutants.recipe.model['tf'], 'keras': other})\n"
    )
    report, finished = compare(str(script), "tf,keras")
    assert (report, finished.returncode) == (None, 2)
    assert "keras: --across cannot carry weights between these models" in finished.stderr.strip().splitlines()[-1]
