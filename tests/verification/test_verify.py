"""``hvdkit verify`` on what is right: the example, a net with short batches, and one with BatchNorm."""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from ranks import on, slowly
from verify_runs import MUTANTS_FILE, run_verify

from hvdkit.tools.verification.rounding import FLOOR

EVERY = [*on("torch", ("torch",)), *on("tf", ("mpi",)), *on("keras", ("mpi",))]
KERAS_ON_TORCH = on("keras", ("torch", "mpi", "horovod"), env={"KERAS_BACKEND": "torch"})
KERAS_ON_JAX = on("keras", ("mpi",), env={"KERAS_BACKEND": "jax"})
EXACT = "bit for bit the same after 6 updates"


def claims(report, step):
    return [check for check in report["checks"] if check["step"] == step]


@pytest.mark.parametrize("combination", [*EVERY[:2], *slowly(EVERY[2:])])
def test_the_example_is_verified(combination, tmp_path: Path):
    page = tmp_path / "page.html"
    report, finished = run_verify("examples/mnist.py", combination, "--steps", "5", "--report", str(page))
    assert finished.code == 0, finished.stdout + finished.stderr
    assert report["passed"]
    assert report["fault"] is None
    assert report["updates"] == 6
    steps = {"recipe", "init", "pin", "broadcast", "shard", "scale_lr", "distribute", "average", "checkpoint"}
    assert {check["step"] for check in report["checks"] if check["passed"]} == steps
    assert "weights; about" in finished.stderr
    shown = page.read_text(encoding="utf-8")
    assert "verified: 2 processes compute what one would" in shown
    assert shown.count("<polyline") == 8


def check_short_batches(report):
    assert report["not_checked"] == []
    assert all(check["passed"] for check in claims(report, "distribute"))
    assert any("short batches" in check["found"] for check in claims(report, "shard"))


@pytest.mark.parametrize("combination", [*slowly(EVERY[1:]), *KERAS_ON_JAX])
def test_a_net_with_short_batches_is_verified_against_the_whole_batch(combination):
    report, finished = run_verify(f"{MUTANTS_FILE}:recipe", combination, "--steps", "6")
    assert finished.code == 0, finished.stdout + finished.stderr
    check_short_batches(report)


@pytest.mark.slow
@pytest.mark.parametrize("combination", KERAS_ON_TORCH)
def test_keras_on_torch_is_verified(combination):
    report, finished = run_verify(f"{MUTANTS_FILE}:recipe", combination, "--steps", "6")
    assert finished.code == 0, finished.stdout + finished.stderr
    assert all(check["passed"] for check in claims(report, "distribute"))


@pytest.mark.slow
@pytest.mark.parametrize("combination", [*EVERY, *KERAS_ON_JAX])
def test_local_batchnorm_is_an_exemption_with_a_reason(combination):
    report, finished = run_verify(f"{MUTANTS_FILE}:normalised", combination, "--steps", "6")
    assert finished.code == 0, finished.stdout + finished.stderr
    assert any(exemption.startswith("BatchNorm") for exemption in report["exemptions"])
    assert all(check["passed"] for check in report["checks"])
    assert not [check for check in report["checks"] if "global batches" in check["claim"]]
    statistics = [check for check in claims(report, "average") if "statistics" in check["claim"]]
    assert [check["found"] for check in statistics if check["limit"] is None] == []
    assert len(statistics) == 3


@pytest.mark.slow
@pytest.mark.parametrize("combination", EVERY)
def test_metrics_of_all_kinds_are_held_to_one_process(combination):
    if combination.framework == "torch" and find_spec("torchmetrics") is None:
        pytest.skip("torchmetrics is not installed here")
    report, finished = run_verify(f"{MUTANTS_FILE}:measured", combination, "--steps", "6")
    assert finished.code == 0, finished.stdout + finished.stderr
    found = next(check["found"] for check in claims(report, "average") if "over all samples" in check["claim"])
    held = (
        ("mean_of_outputs", "MulticlassAccuracy") if combination.framework == "torch" else ("mean_output", "best_two")
    )
    for name in ("loss", "accuracy", *held):
        assert f"{name} within" in found, found
        assert f"val_{name} within" in found, found
    assert report["not_checked"] == []


@pytest.mark.slow
@pytest.mark.parametrize("combination", on("torch", ("torch",)))
def test_synchronised_batchnorm_is_held_to_one_process_on_the_global_batch(combination):
    report, finished = run_verify(f"{MUTANTS_FILE}:synchronised", combination, "--steps", "6")
    assert finished.code == 0, finished.stdout + finished.stderr
    assert [check["passed"] for check in claims(report, "distribute")] == [True, True, True]
    assert all("global batch" in check["claim"] for check in claims(report, "distribute")[1:])
    # the rounded twin goes its own way: limits are more than their floor
    floor = FLOOR * np.finfo(np.float32).eps
    assert min(limit for check in claims(report, "distribute")[1:] for limit in check["limits"]) > 1.5 * floor
    assert any("as one process has them" in check["claim"] for check in claims(report, "average"))


@pytest.mark.slow
@pytest.mark.parametrize("combination", EVERY[:2])
def test_accumulated_and_clipped_gradients_with_adam_equal_the_twin_bit_for_bit(combination):
    report, finished = run_verify(f"{MUTANTS_FILE}:accumulated", combination, "--steps", "6")
    if combination.framework == "tf" and version("keras").startswith("2."):
        assert "Keras 2 optimizers cannot accumulate gradients; use accumulate=1, or Keras 3" in finished.stderr
        assert finished.code == 2
        return
    assert finished.code == 0, finished.stdout + finished.stderr
    assert [check["found"] for check in claims(report, "distribute")][1:3] == [EXACT, EXACT]
    resumed = [check["claim"].partition(",")[0] for check in claims(report, "checkpoint")]
    assert resumed == ["from a file saved inside an epoch", "from the first epoch's file", "from the newest of 2 files"]


@pytest.mark.slow
@pytest.mark.parametrize("combination", on("torch", ("mpi",), (3,)))
def test_three_processes_in_double_precision(combination):
    report, finished = run_verify(f"{MUTANTS_FILE}:recipe", combination, "--steps", "20", "--dtype", "float64")
    assert finished.code == 0, finished.stdout + finished.stderr
    assert all(check["size"] <= 1e-10 for check in claims(report, "distribute"))


@pytest.mark.parametrize("combination", on("torch", ("torch",)))
def test_a_recipe_that_cannot_run_is_one_line(combination, tmp_path: Path):
    (tmp_path / "broken.py").write_text("import hvdkit\nrecipe = 3\n")
    report, finished = run_verify(str(tmp_path / "broken.py"), combination)
    assert (report, finished.code) == (None, 2)
    assert finished.stderr.strip().splitlines() == [
        "hvdkit: error: the recipe does not run on one process: 'recipe' is a int, not an hvdkit.Recipe"
    ]


@pytest.mark.parametrize("combination", on("torch", ("torch",)))
def test_the_function_verifies_a_net_with_short_batches_bit_for_bit(combination, tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        f"sys.path.insert(0, {str(Path(MUTANTS_FILE).parent)!r})\n"
        "import hvdkit, mutants\n"
        "report = hvdkit.verify(mutants.recipe, 'torch', np=2, steps=6, engine='torch')\n"
        "print(report.as_json())\n"
    )
    from rank_jobs import launch_fresh

    finished = launch_fresh(str(script))
    assert finished.code == 0, finished.stderr
    report = json.loads(finished.stdout)
    assert report["passed"]
    assert (report["recipe"], report["processes"]) == ("recipe", 2)
    check_short_batches(report)
    assert [check["found"] for check in claims(report, "distribute")][1:3] == [EXACT, EXACT]
    assert sys.modules.get("torch") is None
