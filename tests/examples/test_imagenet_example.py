"""``examples/imagenet.py``: four methods on a small folder of images, its refusals, and files that all methods read."""

from __future__ import annotations

import importlib.util
import re

import numpy as np
import pytest
from example_runs import HVDKIT, ROOT, available, run, run_inside, succeed
from ranks import Combination, on


def installed(package):
    return importlib.util.find_spec(package) is not None


pytestmark = [pytest.mark.torch, pytest.mark.processes]
needs_engine = pytest.mark.skipif(not available(on("torch", ("torch",))), reason="needs engine torch")
IMAGENET = "examples/imagenet.py"
SCRIPT = str(ROOT / IMAGENET)
ALONE = Combination("torch", "serial", 1)
SMALL = ("--image-size", "32", "--workers", "1", "--lr", "0.02", "--warmup-epochs", "1", "--seed", "3")
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
HOROVOD = available(on("torch", ("horovod",)))


@pytest.fixture(scope="session")
def images(tmp_path_factory):
    """A folder with 3 classes of coloured noise: 24 training and 7 validation images each."""
    from PIL import Image

    generator = np.random.default_rng(0)
    root = tmp_path_factory.mktemp("images")
    for part, count in (("train", 24), ("val", 7)):
        for label in range(3):
            folder = root / part / f"class{label}"
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = generator.integers(0, 120, (40, 48, 3), dtype=np.uint8)
                pixels[..., label] += 120
                Image.fromarray(pixels).save(folder / f"{number}.jpg")
    return root


def started(method, np=2):
    launchers = {
        "ddp": ["python", "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={np}"],
        "horovod": [*HVDKIT, "run", "-np", str(np), "--engine", "torch"],
    }
    return [*launchers[method], SCRIPT]


@pytest.fixture
def single(pools):
    """How ``--method single`` ended, in a process that waits for work."""

    def of(*flags):
        (finished,) = run_inside(pools.get(ALONE), IMAGENET, "--method", "single", *map(str, flags))
        return finished

    return of


def epochs(finished):
    """Return what rank 0 printed of each epoch."""
    pattern = re.compile(r"^(?:\[0\] )?epoch (\d+): (.*)$", re.MULTILINE)
    records = []
    for number, text in pattern.findall(finished.stdout):
        values = {name: float(value) for name, value in re.findall(r"(\w+) ([-\d.]+)", text.split(", 0 steps")[0])}
        records.append({"epoch": int(number), **values})
    return records


@needs_engine
@pytest.mark.parametrize("method", ["single", "dp", "ddp", "horovod"])
def test_every_method_trains_and_counts_each_validation_image_once(images, method, pools):
    batch = "8" if method in ("single", "dp") else "4"
    flags = (str(images), "--method", method, "-b", batch, "--epochs", "1", *SMALL)
    if method in ("single", "dp"):
        (finished,) = run_inside(pools.get(ALONE), IMAGENET, *flags)
    else:
        finished = succeed(*started(method), *flags, env=ONE_THREAD)
    (record,) = epochs(finished)
    assert record["images_per_second"] > 0
    assert record["lr"] == pytest.approx(0.02 if method in ("single", "dp") else 0.04)
    # 21 validation images: top-1 is a multiple of 1/21, top-5 of 3 classes is certain
    assert record["val_top1"] * 21 == pytest.approx(round(record["val_top1"] * 21), abs=2e-3)
    assert record["top5"] == record["val_top5"] == 1.0


@needs_engine
def test_a_checkpoint_of_hvdkit_goes_on_under_another_method(images, tmp_path, single):
    common = [str(images), "-b", "4", *SMALL]
    first = [*started("horovod"), *common, "--epochs", "1", "--checkpoint", str(tmp_path), "--precision", "bf16"]
    (trained,) = epochs(succeed(*first, env=ONE_THREAD))
    resume = ["--resume", str(tmp_path / "checkpoint.pt")]
    (seen,) = epochs(single(*common, *resume, "--evaluate"))
    assert seen["epoch"] == 1
    assert seen["val_top1"] == trained["val_top1"]
    (second,) = epochs(succeed(*started("ddp"), *common, *resume, "--method", "ddp", "--epochs", "2", env=ONE_THREAD))
    assert second["epoch"] == 2


@needs_engine
@pytest.mark.slow
def test_training_stops_at_the_wanted_accuracy_and_fp16_counts_skipped_steps(images):
    command = [*started("horovod"), str(images), "-b", "4", *SMALL, "--epochs", "30", "--desired-acc", "0.3"]
    finished = succeed(*command, "--opt-level", "O1", env=ONE_THREAD)
    records = epochs(finished)
    assert 1 <= len(records) < 30
    assert records[-1]["val_top1"] >= 0.3
    assert re.search(r"\d+ steps skipped", finished.stdout)


def loader_processes(examples):
    import sys

    sys.path.insert(0, examples)
    from imagenet_methods import Single

    method = Single()
    method.load(list(range(8)), list(range(8)), batch_size=2, workers=3, seed=0)
    return method.training.num_workers, method.validation.num_workers


def saved_numbers(folder):
    import torch

    content = torch.load(f"{folder}/checkpoint.pt", weights_only=True)
    group, weight = content["optimizer"]["param_groups"][0], content["model"]["layer1.0.conv1.weight"]
    in_channels_last = weight.is_contiguous(memory_format=torch.channels_last)
    return group["momentum"], group["weight_decay"], in_channels_last, weight.flatten().tolist()


@needs_engine
def test_every_number_of_the_command_line_counts(images, tmp_path, single, pools):
    common = [images, "-b", "24", "--epochs", "1", *SMALL, "--lr", "0"]  # the weights stay as the seed has drawn them
    changed = ["--momentum", "0.5", "--weight-decay", "0.01", "--channels-last", "--seed", "4"]
    for folder, flags in (("first", []), ("second", changed)):
        finished = single(*common, *flags, "--checkpoint", tmp_path / folder)
        assert finished.code == 0, finished.stderr
    alone = pools.get(ALONE)
    (first,), (second,) = (alone.run(saved_numbers, str(tmp_path / folder)) for folder in ("first", "second"))
    assert (first[:3], second[:3]) == ((0.9, 0.0001, False), (0.5, 0.01, True))
    assert first[3] != second[3]
    assert alone.run(loader_processes, str(ROOT / "examples")) == [(3, 3)]


@pytest.mark.horovod
@pytest.mark.skipif(not HOROVOD, reason="there is no Horovod for torch")
def test_horovodrun_starts_it(images):
    command = ["horovodrun", "-np", "2", "python", SCRIPT, str(images), "-b", "4", *SMALL, "--epochs", "1"]
    finished = succeed(*command, env=ONE_THREAD)
    assert "epoch 1: loss" in finished.stdout


REFUSED = {
    ("-a", "resnet35"): "--arch 'resnet35' is no classifier of torchvision; did you mean resnet50, resnet34",
    ("--method", "ddp"): "--method ddp: start it with torchrun, or with hvdkit run -np N --engine torch",
    ("--opt-level", "O3"): "--opt-level O3: use --precision bf16 or fp16, which keep weights in fp32",
    ("--opt-level", "O1", "--precision", "bf16"): "--opt-level and --precision say the same; give one of them",
    ("--dist-backend", "nccl"): "--dist-backend: NCCL is taken on GPUs and Gloo on CPUs; leave it out",
    ("--world-size", "2", "--rank", "1", "--dist-url", "tcp://a:1"): (
        "torchrun --nnodes=2 --node-rank=1 --master-addr=a --master-port=1 --nproc-per-node=GPUS imagenet.py"
    ),
    ("-b", "100", "--method", "single"): "72 training images are less than one batch of all processes; lower -b",
}


@needs_engine
@pytest.mark.parametrize("flags", REFUSED, ids=" ".join)
def test_flags_that_cannot_be_are_refused_with_what_replaces_them(images, flags, pools):
    (finished,) = run_inside(pools.get(ALONE), IMAGENET, str(images), "-b", "8", *SMALL, *flags)
    assert finished.code == 1
    (line,) = finished.stderr.strip().splitlines()
    assert line.startswith("hvdkit: error: ")
    assert REFUSED[flags] in line


@needs_engine
def test_a_net_without_batchnorm_at_a_high_rate_is_warned_about(images, single):
    flags = ("-a", "alexnet", "--image-size", "64", "--lr", "0.1", "--evaluate", "-b", "8")
    finished = single(images, *flags)
    assert finished.code == 0, finished.stderr
    assert "warning: alexnet has no BatchNorm, with which --lr 0.1 may not learn; try --lr 0.01" in finished.stderr


@needs_engine
def test_a_flat_validation_folder_is_refused_and_sort_val_mends_it(images, tmp_path, single):
    data, labels = tmp_path / "data", tmp_path / "labels.txt"
    (data / "val").mkdir(parents=True)
    (data / "train").symlink_to(images / "train")
    with labels.open("w") as file:
        for path in sorted((images / "val").rglob("*.jpg")):
            name = f"{path.parent.name}_{path.name}"
            (data / "val" / name).write_bytes(path.read_bytes())
            file.write(f"{name} {path.parent.name}\n")
    flags = (data, "-b", "8", "--evaluate", *SMALL)
    refused = single(*flags)
    assert refused.code == 1
    assert f"python -m hvdkit.datasets sort-val {data / 'val'} LABELS" in refused.stderr
    succeed("python", "-m", "hvdkit.datasets", "sort-val", str(data / "val"), str(labels))
    assert "val_top1" in single(*flags).stdout


@needs_engine
@pytest.mark.skipif(not installed("tensorboard"), reason="tensorboard is not installed")
@pytest.mark.skipif(installed("tensorflow"), reason="tensorboard loads TensorFlow where it is installed")
def test_tensorboard_gets_the_scalars_of_each_epoch(images, tmp_path):
    command = [*started("horovod"), str(images), "-b", "4", "--epochs", "1", *SMALL, "--tensorboard", str(tmp_path)]
    succeed(*command, env=ONE_THREAD)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert {"loss", "top1", "val_top5", "images_per_second", "lr"} <= set(events.Tags()["scalars"])


@needs_engine
@pytest.mark.skipif(installed("tensorboard"), reason="tensorboard is installed")
def test_without_tensorboard_its_package_is_named(images, tmp_path):
    command = [*started("single"), str(images), "--method", "single", "-b", "8", *SMALL, "--tensorboard", str(tmp_path)]
    finished = run(*command)
    assert finished.code == 1
    assert (
        finished.stderr.strip() == "hvdkit: error: --tensorboard needs the package tensorboard; pip install tensorboard"
    )
