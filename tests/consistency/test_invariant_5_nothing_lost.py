"""Invariant 5: a run that saves after every update may be killed at any instant and goes on with the same curve.

The saved global batch on another number of processes: tests/backends/torch/test_torch_recipe.py and
tests/backends/keras/test_keras_checkpoint.py; files on disk: tests/core/test_checkpoint_files.py.
"""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path

import pytest
from cells import pairs, slow
from limits import HANG_SECONDS
from rank_jobs import Job, launch_fresh
from ranks import but_horovod

EPOCHS = 150
# one global batch is all the data: every epoch is one update, and ends with a file
SCRIPT = f"""
import json, sys
import numpy as np
import hvdkit
from hvdkit.job.arrays import sha256

framework, engine, folder, out = sys.argv[1:]
x = np.random.default_rng(0).normal(size=(8, 6)).astype("float32")
y = (x[:, 0] > 0).astype("int64")

def net():
    if framework == "torch":
        import torch
        return torch.nn.Linear(6, 2)
    import keras
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(2)])

recipe = hvdkit.Recipe(
    model=net, data=hvdkit.Data(train=(x, y)), optimizer=hvdkit.Adam(0.01), batch_size=4, epochs={EPOCHS},
    scale_lr=hvdkit.ScaleLR(warmup_epochs={EPOCHS // 2}),
    checkpoint=hvdkit.Checkpoint(folder), init=hvdkit.Init(engine),
)
trainer = hvdkit.apply(recipe, framework)
print("begins after", trainer.epoch, flush=True)
trainer.fit()
if trainer.world.is_root:
    losses = trainer.history.values("loss")
    open(out, "w").write(json.dumps([losses, sha256(trainer.weights())]))
"""


def newest(folder):
    """Return the epoch of the newest complete file, 0 without one."""
    return max((int(path.stem.split("-")[1]) for path in folder.glob("epoch-*")), default=0)


def kill_in_the_middle(script, combination, folder, while_saving):
    """Start the run and kill all of its ranks at once, some time after it has begun to save."""
    last = newest(folder) + random.randint(2, 30)
    job = Job([sys.executable, *script], combination.engine, combination.size, {})
    try:
        deadline = time.monotonic() + HANG_SECONDS
        while newest(folder) < last:
            assert job.process.poll() is None, job.output()
            assert time.monotonic() < deadline, job.output()
            time.sleep(0.005)
        until = time.monotonic() + random.uniform(0.0, 0.05)
        while time.monotonic() < until and not (while_saving and list(folder.glob(".epoch-*.tmp"))):
            pass
    finally:
        job.end()


@pytest.mark.parametrize(
    ("combination", "kills"),
    [
        pytest.param(entry.values[0], kills, marks=entry.marks, id=entry.id)
        for entries, kills in (
            (but_horovod(pairs(("torch",))), 3),
            (slow(pairs(("tf",))), 1),
            (slow(pairs(("keras",))), 3),
        )
        for entry in entries
    ],
)
def test_a_run_killed_at_any_instant_goes_on_with_the_same_curve(combination, kills, tmp_path):
    path, killed, whole = tmp_path / "train.py", tmp_path / "killed", tmp_path / "whole"
    path.write_text(SCRIPT)
    common = [str(path), combination.framework, combination.engine]
    killed.mkdir()
    for number in range(kills):
        kill_in_the_middle([*common, str(killed), "none"], combination, killed, while_saving=number == 0)
    reached = newest(killed)
    assert reached < EPOCHS
    results = {}
    for folder in (killed, whole):
        out = Path(f"{folder}.json")
        arguments = [*common[1:], str(folder), str(out)]
        done = launch_fresh(str(path), combination.engine, combination.size, arguments)
        assert done.code == 0, done.stderr
        results[folder] = json.loads(out.read_text())
        begins = reached if folder == killed else 0
        assert f"begins after {begins}\n" in done.stdout
    assert len(results[whole][0]) == EPOCHS
    assert results[killed] == results[whole]
