"""A scheduler's signal, or hvdkit's own before the time limit, lets a recipe save and end with a code of its own."""

import importlib.util
import re
import signal
import time

import pytest

TRAINING = """
import numpy as np
import hvdkit
from hvdkit.training.observers import Observer

framework = sys.argv[1]

def net():
    if framework == "torch":
        import torch
        return torch.nn.Linear(6, 2)
    import keras
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(2)])

class Slow(Observer):
    def on_step_end(self, trainer):
        time.sleep(0.05 if len(sys.argv) < 3 else 0.0)
        if trainer.global_step == 25:
            open(f"ready-{rank}", "w").close()

x = np.random.default_rng(0).normal(size=(160, 6)).astype("float32")
recipe = hvdkit.Recipe(
    model=net, data=hvdkit.Data(train=(x, (x[:, 0] > 0).astype("int64"))), optimizer=hvdkit.SGD(0.1),
    batch_size=4, epochs=40 if len(sys.argv) < 3 else 2, observers=(Slow(),), checkpoint=hvdkit.Checkpoint("files"),
)
hvdkit.apply(recipe, framework).fit()
print("finished", flush=True)
"""


def _case(framework, engine):
    missing = importlib.util.find_spec("torch" if framework == "torch" else "tensorflow") is None
    mark = getattr(pytest.mark, framework)
    return pytest.param(
        framework, engine, marks=[mark, pytest.mark.skipif(missing, reason=f"{framework} is not installed")]
    )


CASES = [_case("torch", "torch"), _case("tf", "mpi"), _case("keras", "mpi")]
LAST = "hvdkit: error: saved before the time was up; start the job again to go on"


@pytest.mark.parametrize(("framework", "engine"), CASES)
def test_a_signal_lets_a_run_save_and_end_with_a_code_that_says_again(launch, framework, engine):
    script = launch.script(TRAINING)
    process = launch.start("-np", 2, "--engine", engine, script, framework)
    launch.wait_until(lambda: all((launch.folder / f"ready-{rank}").exists() for rank in range(2)))
    process.send_signal(signal.SIGUSR1)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 75, err
    assert err.splitlines()[-1] == LAST
    (file,) = re.findall(r"the time is nearly up; the job can go on from (files/epoch-\S+)", err)
    assert ("-step-" in file) == (framework != "keras")
    again = launch("-np", 2, "--engine", engine, script, framework, "quickly")
    assert again.returncode == 0, again.stderr
    assert f"hvdkit: going on from {file}, after" in again.stderr
    assert again.stdout.count("finished") == 2


@pytest.mark.parametrize(("framework", "engine"), CASES[:1])
def test_the_launcher_sends_it_before_slurms_time_limit(launch, framework, engine):
    ends = {"SLURM_JOB_END_TIME": str(int(time.time()) + 100)}
    # it may come before training has begun
    options = ("-np", 2, "--engine", engine, "--signal-before", 90)
    done = launch(*options, launch.script(TRAINING), framework, env=ends)
    assert done.returncode == 75, done.stderr
    assert done.stderr.splitlines()[-1] == LAST


def test_without_a_time_limit_that_is_refused(launch):
    done = launch("-np", 2, "--signal-before", 60, launch.script(""))
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "--signal-before needs Slurm's time limit (SLURM_JOB_END_TIME), which is not set here" in line
