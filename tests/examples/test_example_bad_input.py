"""Bad input on 2 processes: one line on every rank, and again by ``hvdkit run``, before any training."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from example_runs import (
    HVDKIT,
    MNIST,
    ROOT,
    available,
    error_lines,
    every,
    hvdkit_run,
    keras_elsewhere,
    run,
    run_inside,
    write_digits,
)
from ranks import on

from hvdkit.engines.horovod.installed import built_for, built_versions, package_folder

pytestmark = pytest.mark.processes

PAIRS = available([*every(), *keras_elsewhere()])[:1]
HOROVOD = [combination for combination in available(every()) if combination.engine == "horovod"]


def check_refused(finished):
    """Check that each of 2 ranks wrote one error line, and the launcher the first of them again; return that.

    A rank that is more than a second behind is ended for the other's failure, ahead of its own.
    """
    assert finished.code == 1, finished.stderr
    assert "Traceback" not in finished.stderr
    assert "epoch 1" not in finished.stderr
    lines = error_lines(finished)
    labels = sorted(line.partition("hvdkit")[0] for line in lines)
    assert labels in (["", "[0] ", "[1] "], ["", "[0] "], ["", "[1] "]), finished.stderr
    assert finished.stderr.splitlines()[-1] == lines[-1]
    message = re.fullmatch(r"hvdkit: error: rank \d: (.*)", lines[-1]).group(1)
    for line in lines[:-1]:
        # a rank may hear of the other's failure before it comes to its own
        assert line.endswith(message) or f": {message}; rank" in line
    return message


@pytest.fixture
def refusal(digits, pools):
    """The message with which 2 ranks refuse to train; they wait for work unless a job is ``launched`` for it."""
    if not PAIRS:
        pytest.skip("there is no engine for a framework here")
    pair = PAIRS[0]

    def of(*flags, data=digits, script=MNIST, launched=False):
        program = (str(script), "--framework", pair.framework, "--data-dir", str(data), *flags)
        if launched:
            return check_refused(run(*hvdkit_run(pair, *program), env=dict(pair.env)))
        ended = run_inside(pools.get(pair), *program)
        assert [finished.code for finished in ended] == [1, 1]
        assert "epoch 1" not in "".join(finished.stderr for finished in ended)
        ((line,), (other,)) = (error_lines(finished) for finished in ended)
        assert line == other
        return line.removeprefix("hvdkit: error: ")

    return of


@pytest.mark.parametrize("combination", on("core", ("mpi", "torch", "horovod")))
def test_wrong_framework_name(combination):
    finished = run(*hvdkit_run(combination, MNIST, "--framework", "pytorch"))
    assert check_refused(finished) == "framework 'pytorch' is unknown; use one of torch, tf, keras"


def test_unknown_engine_in_the_script(refusal):
    assert refusal("--engine", "nccl").startswith("Init.engine is 'nccl'; it must be one of")


def test_unknown_engine_of_the_launcher():
    finished = run(*HVDKIT, "run", "-np", "2", "--engine", "nccl", MNIST, "--framework", "torch")
    assert finished.code == 1
    (line,) = finished.stderr.splitlines()
    assert line == "hvdkit: error: engine 'nccl' is unknown; use auto, serial, horovod, torch, mpi"


def test_script_that_does_not_exist():
    finished = run(*HVDKIT, "run", "-np", "2", "examples/minst.py")
    assert finished.code == 1
    assert finished.stderr.splitlines() == ["hvdkit: error: script 'examples/minst.py' does not exist"]


def test_empty_data(refusal, tmp_path):
    assert "train-images-idx3-ubyte is empty" in refusal(data=write_digits(tmp_path, train=0))


def test_missing_folder(refusal, tmp_path):
    assert refusal(data=tmp_path / "none", launched=True) == f"data_dir {tmp_path / 'none'} is not a folder"


def test_label_out_of_range(refusal, tmp_path):
    message = refusal(data=write_digits(tmp_path, label=11))
    assert "train-labels-idx1-ubyte: label 11 at index 255 is out of range; 10 classes allow 0 to 9" in message


def test_file_cut_short(refusal, tmp_path):
    file = write_digits(tmp_path) / "train-images-idx3-ubyte"
    file.write_bytes(file.read_bytes()[:-100])
    assert f"{file} is cut short" in refusal(data=tmp_path)


def test_data_that_do_not_fill_one_global_batch(refusal, tmp_path):
    script = tmp_path / "small.py"
    script.write_text(
        f"""
import functools, sys
sys.path.insert(0, {str((ROOT / MNIST).parent)!r})
import hvdkit, mnist

data = functools.partial(hvdkit.datasets.mnist, sys.argv[4])
hvdkit.apply(mnist.recipe.replace(data=data, shard=hvdkit.Shard(uneven="drop")), framework=sys.argv[2])
"""
    )
    message = refusal(data=write_digits(tmp_path / "digits", train=100), script=script)
    assert message.startswith("100 samples do not fill one global batch of 128")


def shadow(folder: Path, leave_out: str) -> dict[str, str]:
    """Put the installed Horovod under a folder by links, without one entry; return the variable that prefers it."""
    installed = package_folder("horovod")
    top = Path(leave_out).parts[0]
    (folder / "horovod" / Path(leave_out).parent).mkdir(parents=True, exist_ok=True)
    for source, target in ((installed, folder / "horovod"), (installed / top, folder / "horovod" / top)):
        for entry in source.iterdir() if source.is_dir() else ():
            place = target / entry.name
            if not place.exists() and not str(place.relative_to(folder / "horovod")).startswith(leave_out):
                place.symlink_to(entry)
    return {"PYTHONPATH": f"{folder}:{ROOT}"}


@pytest.mark.skipif(
    not (HOROVOD and all(map(built_for, ("torch", "tf")))), reason="there is no Horovod for two libraries"
)
def test_horovod_built_without_the_framework(tmp_path):
    combination = HOROVOD[0]
    library, extension = {"torch": ("torch", "torch/mpi_lib_v2")}.get(
        combination.framework, ("tf", "tensorflow/mpi_lib.")
    )
    env = shadow(tmp_path, leave_out=extension)
    command = hvdkit_run(combination, MNIST, "--framework", combination.framework)
    refused = run(*command, env=env)
    assert refused.code == 1
    (line,) = refused.stderr.splitlines()
    assert line.startswith(f"hvdkit: error: engine horovod: Horovod was built without {library}; rebuild it with: ")
    assert f" --framework {library}" in line


@pytest.mark.skipif(not HOROVOD, reason="there is no Horovod for a framework here")
@pytest.mark.skipif(not built_versions(), reason="this Horovod does not tell what it was built for")
def test_framework_upgraded_after_the_build(tmp_path):
    combination = HOROVOD[0]
    env = shadow(tmp_path, leave_out="hvdkit_build.json")
    older = dict.fromkeys(built_versions(), "1.0.0")
    (tmp_path / "horovod" / "hvdkit_build.json").write_text(json.dumps({"frameworks": older}))
    command = hvdkit_run(combination, MNIST, "--framework", combination.framework)
    message = check_refused(run(*command, env=env))
    assert re.match(r"horovod was built for \w+ 1\.0\.0, but \w+ \S+ is installed; rebuild it with: hvdkit", message)
