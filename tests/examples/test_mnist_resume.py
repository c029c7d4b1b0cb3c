"""A run that ends after epoch 2 and goes on later is the run that was never interrupted."""

from __future__ import annotations

import pytest
from example_runs import (
    MNIST,
    ROOT,
    every,
    hvdkit_run,
    keras_elsewhere,
    one_engine_each,
    succeed,
    write_digits,
)
from ranks import UNDER_KERAS_2, but_horovod

pytestmark = UNDER_KERAS_2

# each rank is given a folder that no other rank sees
OWN_FOLDER = f"""
import os, runpy, sys

names = ("HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "RANK")
rank = next(os.environ[name] for name in names if name in os.environ)
sys.argv[1:] = ["--checkpoint", sys.argv[1] + "/rank-" + rank, *sys.argv[2:]]
sys.path.insert(0, {str(ROOT / "examples")!r})
runpy.run_path({str(ROOT / MNIST)!r}, run_name="__main__")
"""
CURVE = ("loss", "accuracy", "val_loss", "val_accuracy", "learning_rate")


@pytest.mark.parametrize("combination", one_engine_each(but_horovod([*every(), *keras_elsewhere()])))
def test_the_curve_after_a_resume_is_that_of_an_uninterrupted_run(combination, summaries, tmp_path):
    # 250 digits leave 26 for the last global batch of 32
    digits = write_digits(tmp_path / "digits", train=250)
    script = tmp_path / "own_folder.py"
    script.write_text(OWN_FOLDER)
    common = ["--data-dir", str(digits), "--batch-size", "16"]
    command = hvdkit_run(combination, str(script), str(tmp_path), "--framework", combination.framework, *common)
    env = dict(combination.env)

    whole = summaries.inside(combination, *common, "--epochs", "4")
    succeed(*command, "--epochs", "2", env=env)
    files = sorted(path.name for path in (tmp_path / "rank-0").glob("epoch-*"))
    assert [name.split(".")[0] for name in files] == ["epoch-0001", "epoch-0002"]
    assert not (tmp_path / "rank-1").exists()

    resumed = summaries.of_command(*command, "--epochs", "4", "--resume", env=env)
    assert not (tmp_path / "rank-1").exists()
    assert [record["epoch"] for record in resumed["epochs"]] == [1, 2, 3, 4]
    for name in CURVE:
        assert [record[name] for record in resumed["epochs"]] == [record[name] for record in whole["epochs"]], name
    assert resumed["weights_sha256"] == whole["weights_sha256"]
    assert len(set(resumed["weights_sha256"])) == 1
