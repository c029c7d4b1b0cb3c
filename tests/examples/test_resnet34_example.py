"""ResNet34 on 2 processes: on class folders, CIFAR-10's files and synthetic images, under both launchers."""

from __future__ import annotations

import json
import re
from tempfile import gettempdir

import numpy as np
import pytest
from example_runs import available, error_lines, every, hvdkit_run, one_process, run, run_inside, succeed
from ranks import UNDER_KERAS_2

pytestmark = [pytest.mark.processes, *UNDER_KERAS_2]

RESNET34 = "examples/resnet34.py"
# what runs every time; the other pairs of data and launcher are slow, and so is hvdkit run over Horovod: each framework
# has another engine in another environment
SHORT = {
    "torch": {("synthetic", "hvdkit run"), ("folder", "horovodrun")},
    "tf": {("folder", "hvdkit run")},
    "keras": {("cifar10", "hvdkit run")},
}
PLAIN = available(one_process())[:1]
PAIRS = available(every())[:1]


def cases():
    """Return framework, engine, data and launcher: hvdkit run with the first engine here, horovodrun with Horovod."""
    found = []
    for framework, short in SHORT.items():
        here = [one for one in available(every()) if one.framework == framework]
        starts = [(one, "hvdkit run") for one in here[:1]]
        starts += [(one, "horovodrun") for one in here if one.engine == "horovod"]
        for one, launcher in starts:
            for data in ("synthetic", "folder", "cifar10"):
                quick = (data, launcher) in short and (one.engine, launcher) != ("horovod", "hvdkit run")
                marks = [] if quick else [pytest.mark.slow]
                found.append(pytest.param(one, data, launcher, marks=marks, id=f"{framework}-{data}-{launcher}"))
    return found


@pytest.fixture(scope="session")
def photographs(tmp_path_factory):
    """Class folders with images of several sizes, one of them grey."""
    image = pytest.importorskip("PIL.Image")
    folder, random = tmp_path_factory.mktemp("photographs"), np.random.default_rng(0)
    for part, count in (("train", 12), ("val", 2)):
        for name in ("bird", "cat", "dog"):
            (folder / part / name).mkdir(parents=True)
            for number in range(count):
                pixels = random.integers(0, 256, (20 + number, 24) if number == 1 else (20 + number, 24, 3), np.uint8)
                image.fromarray(pixels).save(folder / part / name / f"{number}.png")
    return folder


@pytest.fixture(scope="session")
def cifar10(tmp_path_factory):
    """CIFAR-10's six files with eight images each."""
    folder, random = tmp_path_factory.mktemp("cifar10"), np.random.default_rng(0)
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        records = random.integers(0, 256, (8, 3073), dtype=np.uint8)
        records[:, 0] %= 10
        (folder / f"{name}.bin").write_bytes(records.tobytes())
    return folder


@pytest.fixture
def source(photographs, cifar10):
    """The flags that choose the data."""
    return {
        "synthetic": ("--image-size", "16"),
        "folder": ("--data-dir", str(photographs), "--image-size", "16"),
        "cifar10": ("--data-dir", str(cifar10)),
    }


@pytest.mark.parametrize(("combination", "data", "launcher"), cases())
def test_h04_images_per_second_of_each_process_and_in_total(combination, data, launcher, source, tmp_path):
    program = [RESNET34, "--framework", combination.framework, *source[data], "--batch-size", "4", "--steps", "3"]
    if launcher == "horovodrun":
        command = ["horovodrun", "-np", "2", "python", *program]
    else:
        command = hvdkit_run(combination, *program)
    finished = succeed(*command, "--out", str(tmp_path))
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["framework"], summary["engine"], summary["size"]) == (combination.framework, combination.engine, 2)
    assert (summary["global_batch_size"], summary["steps_per_epoch"]) == (8, 3)
    assert len(set(summary["weights_sha256"])) == 1
    check_speed(summary["images_per_second"])
    check_lines(finished.stdout, summary)


def check_speed(found):
    assert found["steps"] == 2  # the first of three is left out
    assert len(found["start_up_seconds"]) == len(found["first_step_seconds"]) == len(found["per_process"]) == 2
    assert min(found["start_up_seconds"] + found["first_step_seconds"]) > 0
    means = [rate["mean"] for rate in found["per_process"]]
    assert 0 < found["total"]["mean"] <= sum(means) * 1.001  # the slowest rank sets the time
    assert all(rate["plus_minus"] >= 0 for rate in [*found["per_process"], found["total"]])


def check_lines(text, summary):
    number = r"([\d.]+)"
    shown = rf"rank (\d): start-up {number} s, first step {number} s, then {number} ± {number} images/s"
    ranks = re.findall(shown, text)
    assert [rank for rank, *_ in ranks] == ["0", "1"]
    found = summary["images_per_second"]
    for (_, start_up, first, mean, spread), *values in zip(
        ranks, found["start_up_seconds"], found["first_step_seconds"], found["per_process"], strict=True
    ):
        assert (start_up, first) == (f"{values[0]:.2f}", f"{values[1]:.2f}")
        assert (mean, spread) == (f"{values[2]['mean']:.1f}", f"{values[2]['plus_minus']:.1f}")
    (total,) = re.findall(rf"total: {number} ± {number} images/s", text)
    assert total == (f"{found['total']['mean']:.1f}", f"{found['total']['plus_minus']:.1f}")
    assert re.findall(r"weights of rank \d: (\w{64})", text) == summary["weights_sha256"]


@pytest.mark.skipif(not PAIRS, reason="there is no engine here")
def test_every_number_of_the_command_line_counts(tmp_path, photographs, pools):
    flags = ("--epochs", "2", "--batch-size", "3", "--lr", "0.001", "--warmup-epochs", "4", "--image-size", "12")
    program = (RESNET34, "--framework", PAIRS[0].framework, "--data-dir", str(photographs), "--steps", "2")
    assert {ended.code for ended in run_inside(pools.get(PAIRS[0]), *program, *flags, "--out", str(tmp_path))} == {0}
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["global_batch_size"], summary["steps_per_epoch"], len(summary["epochs"])) == (6, 2, 2)
    assert summary["learning_rate"] == pytest.approx(0.002)
    assert summary["epochs"][1]["learning_rate"] == pytest.approx(0.0015)
    assert summary["images_per_second"]["steps"] == 3


@pytest.fixture
def ended(pools):
    """How one process of one step ended."""

    def of(framework, *flags):
        here = [one for one in available(one_process()) if one.framework == framework]
        if not here:
            pytest.skip(f"{framework} cannot run here")
        common = ("--framework", framework, "--image-size", "8", "--batch-size", "4", "--steps", "1")
        (finished,) = run_inside(pools.get(here[0]), RESNET34, *common, *flags)
        return finished

    return of


def test_precision(ended):
    assert ", precision bf16" in ended("torch", "--precision", "bf16").stderr


@pytest.mark.slow
@pytest.mark.skipif(" " in gettempdir(), reason="torch's compiler takes no temporary folder with a blank in its name")
def test_compile(ended):
    assert ", compiled" in ended("torch", "--compile").stderr


@pytest.mark.parametrize("flags", [("--compile",), ("--cuda-graphs", "on")], ids="-".join)
@pytest.mark.parametrize("framework", ["tf", "keras"])
def test_what_only_torch_can_do(ended, framework, flags):
    finished = ended(framework, *flags)
    (line,) = error_lines(finished)
    assert finished.code == 1
    assert f"{' '.join(flags)} belongs to --framework torch, not to {framework}" in line


@pytest.fixture
def refusal(pools):
    """The error line of a process that must be refused."""

    def of(*flags):
        if not PLAIN:
            pytest.skip("there is no framework here")
        (finished,) = run_inside(pools.get(PLAIN[0]), RESNET34, "--framework", PLAIN[0].framework, *flags)
        assert finished.code == 1
        assert "Traceback" not in finished.stderr
        assert "epoch 1" not in finished.stderr
        (line,) = error_lines(finished)
        return line

    return of


def test_missing_folder(refusal, tmp_path):
    line = refusal("--data-dir", str(tmp_path / "none"))
    assert line.endswith(f"image folder {tmp_path / 'none'} cannot be read: No such file or directory")


@pytest.mark.slow
def test_images_of_several_sizes_need_one(refusal, photographs):
    assert refusal("--data-dir", str(photographs)).endswith("give a size")


def test_image_size_does_not_belong_to_cifar10(refusal, cifar10):
    assert "--image-size belongs to image folders" in refusal("--data-dir", str(cifar10), "--image-size", "64")


def test_more_steps_than_images(refusal, photographs):
    line = refusal("--data-dir", str(photographs), "--image-size", "16", "--batch-size", "4", "--steps", "10")
    assert "10 steps per epoch and process are asked for, but 36 samples make only 9" in line


def test_wrong_numbers(refusal):
    assert "Recipe.batch_size is 0; it must be a whole number >= 1" in refusal("--batch-size", "0")
    assert "SGD.lr is -1.0; it must be a number >= 0" in refusal("--lr", "-1")
    assert "Init.engine is 'nccl'" in refusal("--engine", "nccl")


def test_wrong_value_of_a_flag_is_a_usage_error():
    finished = run("python", RESNET34, "--framework", "torch", "--steps", "0")
    assert finished.code == 2
    assert "0 is not in the range x>=1" in finished.stderr
