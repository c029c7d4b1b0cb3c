"""Train ResNet34 on a folder of images, on CIFAR-10 or on synthetic images, and measure images per second.

hvdkit run -np 2 examples/resnet34.py --framework torch --steps 10
horovodrun -np 2 python examples/resnet34.py --framework tf --data-dir /data/cifar10
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import click
import numpy as np
from gpu_options import FAST, gpu_fields, gpu_options
from reporting import StepTimes, show_speed, speed, summarise, write_summary

import hvdkit
from hvdkit.errors import RecipeError
from hvdkit.process.environment import launched_as
from hvdkit.process.failures import watch_exceptions

CLASSES = 10
SYNTHETIC_SIZE = 32
SYNTHETIC_STEPS = 20
DIFFERENT = 1024


def synthetic(size: int, samples: int) -> hvdkit.Data:
    """Return made-up images, of which the same come again behind the first 1024: to draw them takes long."""
    data = hvdkit.datasets.synthetic(min(samples, DIFFERENT), (size, size, 3), CLASSES)
    if samples <= DIFFERENT:
        return data
    places = np.arange(samples) % DIFFERENT
    x, y = data.train
    return hvdkit.Data(train=(x[places], y[places]), validation=data.validation, classes=CLASSES)


def images(data_dir: str, size: int | None) -> hvdkit.Data:
    """Read CIFAR-10's files or class folders, whichever the folder holds; every tenth image validates without val/."""
    folder = Path(data_dir)
    if any((folder / name).exists() for name in ("data_batch_1.bin", "data_batch_1", "cifar-10-batches-py")):
        if size is not None:
            raise RecipeError("--image-size belongs to image folders and synthetic images; CIFAR-10 has 32 pixels")
        return hvdkit.datasets.cifar10(folder)
    data = hvdkit.datasets.image_folder(folder, size)
    if data.validation is not None:
        return data
    held = [index % 10 == 0 for index in range(len(data.train[1]))]
    kept = [not one for one in held]
    x, y = data.train
    return hvdkit.Data(train=(x[kept], y[kept]), validation=(x[held], y[held]), classes=data.classes)


recipe = hvdkit.Recipe(
    model="resnet34",
    data=functools.partial(synthetic, SYNTHETIC_SIZE, 32 * SYNTHETIC_STEPS),
    loss="sparse_categorical_crossentropy",
    optimizer=hvdkit.SGD(lr=0.0125, momentum=0.9, weight_decay=1e-4),
    metrics=("accuracy",),
    batch_size=32,
    seed=42,
    # BatchNorm cannot normalise a last batch of one image
    shard=hvdkit.Shard(uneven="drop"),
)


def configured(options: dict[str, Any], framework: str, times: StepTimes) -> hvdkit.Recipe:
    """Return the recipe with the command line's settings."""
    processes, batch, size, steps = launched_as().size, options["batch_size"], options["image_size"], options["steps"]
    if options["data_dir"] is None:
        samples = (SYNTHETIC_STEPS if steps is None else steps) * batch * processes
        data = functools.partial(synthetic, SYNTHETIC_SIZE if size is None else size, samples)
    else:
        data = functools.partial(images, options["data_dir"], size)
    return recipe.replace(
        data=data,
        optimizer=hvdkit.SGD(lr=options["lr"], momentum=0.9, weight_decay=1e-4),
        batch_size=batch,
        epochs=options["epochs"],
        # a recipe counts the steps of one process
        steps_per_epoch=None if steps is None else steps * processes,
        init=hvdkit.Init(options["engine"]),
        scale_lr=hvdkit.ScaleLR("linear", options["warmup_epochs"]),
        observers=(times,),
        **gpu_fields(options, framework, on_gpu=FAST),
    )


@click.command()
@click.option("--framework", required=True, help="torch, tf or keras.")
@click.option("--data-dir", help="Class folders of images, or CIFAR-10's files; without it, synthetic images.")
@click.option("--image-size", type=int, help="Pixels a side; 32 for synthetic images, else as the files are.")
@click.option("--batch-size", default=32, show_default=True, help="Images per process and step.")
@click.option("--steps", type=click.IntRange(min=1), help="Steps per epoch, if not all images (synthetic: 20).")
@click.option("--epochs", default=1, show_default=True)
@click.option("--lr", default=0.0125, show_default=True, help="Learning rate of one process.")
@click.option("--warmup-epochs", default=0.0, show_default=True, help="Epochs until the scaled rate is reached.")
@click.option("--engine", default="auto", show_default=True, help="horovod, torch, mpi, serial or auto.")
@gpu_options(on_gpu=FAST)
@click.option("--out", metavar="DIR", help="Write DIR/summary.json.")
def main(framework: str, out: str | None, **options: Any) -> None:
    """Train ResNet34 and measure images per second."""
    watch_exceptions()
    times = StepTimes()
    trainer = hvdkit.apply(configured(options, framework, times), framework=framework)
    trainer.fit()
    summary = {**summarise(trainer), "images_per_second": speed(trainer, times)}
    show_speed(trainer, summary["images_per_second"], summary["weights_sha256"])
    if out is not None:
        write_summary(trainer, summary, out)
    trainer.shutdown()


if __name__ == "__main__":
    main()
