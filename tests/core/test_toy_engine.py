"""A new engine is one Spec: with that alone it trains, is launched, reported and verified."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from limits import HANG_SECONDS
from rank_jobs import Job

ROOT = Path(__file__).parents[2]
TOY = Path(__file__).parent / "toy_engine"
WORLD = """
import hvdkit
world = hvdkit.init()
print(world.engine.name, world.reason, world.size, world.allreduce(world.rank + 1.0, "sum"))
"""
RECIPE = """
import numpy as np, torch, hvdkit

x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
recipe = hvdkit.Recipe(
    model=lambda: torch.nn.Linear(4, 3),
    data=hvdkit.Data(train=(x, (x[:, 0] > 0).astype("int64"))),
    optimizer=hvdkit.Adam(0.01),
    batch_size=8,
)
"""
pytestmark = pytest.mark.processes


def hvdkit(*words, folder):
    """Run a command of hvdkit with the toy registered; return its code and what it wrote."""
    path = os.pathsep.join((str(TOY), str(ROOT), os.environ.get("PYTHONPATH", "")))
    command = [sys.executable, "-m", "hvdkit", *words]
    options = {"cwd": folder, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    job = Job(command, "serial", 1, {"PYTHONPATH": path, "COLUMNS": "200"}, **options)
    try:
        out, _ = job.process.communicate(timeout=HANG_SECONDS)
    finally:
        job.end()
    return job.process.returncode, out


def test_hvdkit_run_starts_it_and_init_finds_it(tmp_path):
    (tmp_path / "script.py").write_text(WORLD)
    code, out = hvdkit("run", "-np", "3", "script.py", folder=tmp_path)
    assert code == 0, out
    first, *ranks = sorted(out.splitlines(), key=lambda line: line.startswith("["))
    assert first == "hvdkit: engine toy (there is a toy), 3 processes by toyrun"
    assert sorted(ranks) == [f"[{rank}] toy chosen by hvdkit run 3 6.0" for rank in range(3)]


def test_a_recipe_may_ask_for_it_and_other_libraries_are_refused(tmp_path):
    (tmp_path / "script.py").write_text("import hvdkit\nprint(hvdkit.Init('toy'))\nhvdkit.init('toy', 'tf')\n")
    code, out = hvdkit("run", "-np", "1", "--engine", "serial", "script.py", folder=tmp_path)
    assert code == 1
    assert "Init(engine='toy'," in out
    assert "engine 'toy' cannot carry tensors of 'tf'; use one of horovod, mpi" in out


def test_an_unknown_engine_is_refused_with_its_name_among_the_others(tmp_path):
    (tmp_path / "script.py").write_text("")
    code, out = hvdkit("run", "-np", "2", "--engine", "nccl", "script.py", folder=tmp_path)
    assert (code, out) == (1, "hvdkit: error: engine 'nccl' is unknown; use auto, serial, toy, horovod, torch, mpi\n")


@pytest.mark.torch
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_doctor_names_it_and_verify_trains_with_it(tmp_path):
    code, out = hvdkit("doctor", folder=tmp_path)
    assert code == 0, out
    assert "toy: there is a toy" in out
    (tmp_path / "recipe.py").write_text(RECIPE)
    code, out = hvdkit("verify", "recipe.py", "--framework", "torch", "--steps", "6", folder=tmp_path)
    assert code == 0, out
    assert "toy" in out
