"""A job that fails is started again, as often as it may be."""

import importlib.util
import re

import pytest

FAILING_TWICE = """
import pathlib
mine = pathlib.Path(f"starts-{rank}")
starts = int(mine.read_text()) if mine.exists() else 0
mine.write_text(str(starts + 1))
print(f"start {starts} of rank {rank}, restarts {os.environ.get('HVDKIT_RESTARTS', 0)}", flush=True)
if rank == 1 and starts < 2:
    time.sleep(0.3)
    os.kill(os.getpid(), 9)
if starts < 2:
    time.sleep(300)
"""
TRAINING = """
import signal
import numpy as np
import torch
import hvdkit
from hvdkit.training.observers import Observer

class Dying(Observer):
    def on_epoch_begin(self, trainer):
        if trainer.epoch == 2 and "HVDKIT_RESTARTS" not in os.environ and trainer.world.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)

x = np.random.default_rng(0).normal(size=(64, 6)).astype("float32")
recipe = hvdkit.Recipe(
    model=lambda: torch.nn.Linear(6, 2), data=hvdkit.Data(train=(x, (x[:, 0] > 0).astype("int64"))),
    optimizer=hvdkit.SGD(0.1), batch_size=4, epochs=4, observers=(Dying(),),
    checkpoint=hvdkit.Checkpoint("files", resume=False),
)
trainer = hvdkit.apply(recipe, "torch")
began = trainer.epoch
trainer.fit()
print(f"from {began} to {trainer.epoch}", flush=True)
"""


def test_a_job_that_fails_is_started_again_until_it_succeeds(launch, engine):
    script = launch.script(FAILING_TWICE)
    done = launch("-np", 2, "--engine", engine, "--max-restarts", 2, "--log-dir", "logs", script)
    assert done.returncode == 0, done.stderr
    told = re.findall(r"^hvdkit: rank 1: killed by SIGKILL; start (\d) of 3$", done.stderr, re.MULTILINE)
    assert told == ["2", "3"]
    started = [f"start {number} of rank 1, restarts {number}" for number in range(3)]
    assert (launch.folder / "logs" / "rank-1.log").read_text().splitlines() == started


def test_a_job_that_fails_too_often_ends_as_the_last_start_did(launch, engine):
    done = launch("-np", 2, "--engine", engine, "--max-restarts", 1, launch.script(FAILING_TWICE))
    assert done.returncode == 137
    assert done.stderr.splitlines()[-1] == "hvdkit: error: rank 1: killed by SIGKILL"
    assert (launch.folder / "starts-1").read_text() == "2"


@pytest.mark.torch
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_a_recipe_goes_on_from_its_own_files_though_it_was_not_to_take_others(launch):
    done = launch("-np", 2, "--engine", "torch", "--max-restarts", 1, launch.script(TRAINING))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0] from 2 to 4", "[1] from 2 to 4"]


@pytest.mark.mpi
@pytest.mark.parametrize("error", ["RecipeError", "DataError"])
def test_a_refusal_is_not_repeated(launch, error):
    pytest.importorskip("mpi4py")
    text = f"from hvdkit.errors import {error}\nimport hvdkit\nhvdkit.init()\nraise {error}('no')\n"
    done = launch("-np", 2, "--engine", "mpi", "--max-restarts", 3, launch.script(text))
    assert done.returncode == 1
    assert "; start" not in done.stderr
    assert re.fullmatch(r"hvdkit: error: rank [01]: no", done.stderr.splitlines()[-1])
