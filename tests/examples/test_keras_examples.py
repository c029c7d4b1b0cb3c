"""The two examples of Horovod's introduction to Keras and TensorFlow, shortened, under both launchers."""

from __future__ import annotations

import re

import numpy as np
import pytest
from example_runs import ROOT, available, hvdkit_run, succeed
from ranks import UNDER_KERAS_2, on

from hvdkit.engines.horovod.installed import gloo_built

FIT, LOOP = "examples/keras_fit.py", "examples/tf_custom_loop.py"
needs_gloo = pytest.mark.skipif(not gloo_built(), reason="there is no Horovod built with Gloo")
HERE = available(on("keras", ("mpi", "horovod")))
# over Horovod alone it would repeat what horovodrun shows
ONLY_HOROVOD = [pytest.mark.slow] if HERE and HERE[0].engine == "horovod" else []
LAUNCHERS = [
    pytest.param(
        None,
        id="hvdkit run",
        marks=[pytest.mark.skipif(not HERE, reason="no engine serves Keras here"), *ONLY_HOROVOD, *UNDER_KERAS_2],
    ),
    pytest.param(["horovodrun", "-np", "2", "python"], id="horovodrun", marks=needs_gloo),
]


def start(launcher, *program):
    """Run an example on two processes and return what it printed."""
    command = hvdkit_run(HERE[0], *program) if launcher is None else [*launcher, *program]
    return succeed(*command).stdout


@pytest.mark.parametrize("path", [FIT, LOOP])
def test_the_eight_steps_are_marked(path):
    assert sorted(re.findall(r"# step (\d):", (ROOT / path).read_text())) == [str(step) for step in range(1, 9)]


@pytest.mark.processes
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_keras_fit(launcher, digits, tmp_path):
    flags = ["--epochs", "2", "--steps", "16", "--batch-size", "16", "--warmup-epochs", "1", "--lr", "0.005"]
    printed = start(launcher, FIT, *flags, "--data-dir", str(digits), "--checkpoints", str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-1.keras", "checkpoint-2.keras"]
    losses = [float(value) for value in re.findall(r"loss: ([\d.e+-]+)", printed)]
    assert len(losses) == 2  # rank 0 alone shows progress
    assert losses[1] < losses[0]
    assert len(re.findall(r"\b8/8\b", printed)) == 2  # 16 // 2 steps
    assert printed.count("finished gradual learning rate warmup to 0.01") == 1


@pytest.mark.processes
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_tf_custom_loop(launcher, digits, tmp_path):
    file = tmp_path / "state.npz"
    flags = ["--steps", "62", "--batch-size", "16", "--lr", "0.005", "--data-dir", str(digits)]
    printed = start(launcher, LOOP, *flags, "--checkpoint", str(file))
    lines = re.findall(r"Step #(\d+)\tLoss: ([\d.]+)", printed)
    assert [int(step) for step, _ in lines] == [0, 10, 20, 30]
    assert float(lines[-1][1]) < 0.8 * float(lines[0][1])
    with np.load(file) as content:
        assert len(content.files) > 16
