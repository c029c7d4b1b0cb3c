"""Train a small CNN on handwritten digits, with one recipe for PyTorch, TensorFlow and Keras.

hvdkit run -np 2 examples/mnist.py --framework torch
"""

from __future__ import annotations

import functools
from typing import Any

import click
from gpu_options import PLAIN, gpu_fields, gpu_options
from reporting import summarise, write_summary

import hvdkit
from hvdkit.errors import RecipeError
from hvdkit.process.failures import watch_exceptions

OPTIMIZERS = {"sgd": hvdkit.SGD, "adam": hvdkit.Adam, "adamw": hvdkit.AdamW, "adagrad": hvdkit.Adagrad}

recipe = hvdkit.Recipe(
    model="mnist_cnn",
    data=hvdkit.datasets.mnist,
    loss="sparse_categorical_crossentropy",
    optimizer=hvdkit.Adam(lr=0.001),
    metrics=("accuracy",),
    batch_size=64,
    epochs=5,
    seed=42,
    scale_lr=hvdkit.ScaleLR("linear", warmup_epochs=1),
)


def configured(options: dict[str, Any], framework: str) -> hvdkit.Recipe:
    """Return the recipe with the command line's settings."""
    target = options["target_accuracy"]
    return recipe.replace(
        data=functools.partial(hvdkit.datasets.mnist, options["data_dir"]),
        optimizer=_optimizer(options["optimizer"], options["lr"], options["momentum"]),
        batch_size=options["batch_size"],
        epochs=options["epochs"],
        stop_at=None if target is None else {"accuracy": target},
        init=hvdkit.Init(options["engine"]),
        shard=hvdkit.Shard(workers=options["workers"]),
        scale_lr=hvdkit.ScaleLR(options["lr_scaling"], options["warmup_epochs"]),
        distribute=hvdkit.Distribute(compression="fp16" if options["fp16_allreduce"] else "none"),
        checkpoint=_checkpoint(options["checkpoint"], options["resume"]),
        **gpu_fields(options, framework, on_gpu=PLAIN),
    )


def _optimizer(name: str, lr: float, momentum: float | None) -> Any:
    if momentum is None:
        return OPTIMIZERS[name](lr=lr)
    if name != "sgd":
        raise RecipeError(f"--momentum belongs to --optimizer sgd, not to {name}")
    return hvdkit.SGD(lr=lr, momentum=momentum)


def _checkpoint(directory: str | None, resume: bool) -> hvdkit.Checkpoint | None:
    if directory is None and resume:
        raise RecipeError("--resume needs --checkpoint DIR, the folder to resume from")
    return None if directory is None else hvdkit.Checkpoint(directory, resume=resume)


@click.command()
@click.option("--framework", required=True, help="torch, tf or keras.")
@click.option("--epochs", default=5, show_default=True, help="Epochs in all, also after --resume.")
@click.option("--batch-size", default=64, show_default=True, help="Samples per process and step.")
@click.option("--lr", default=0.001, show_default=True, help="Learning rate of one process.")
@click.option("--lr-scaling", type=click.Choice(["linear", "sqrt", "none"]), default="linear", show_default=True)
@click.option("--warmup-epochs", default=1.0, show_default=True, help="Epochs until the scaled rate is reached.")
@click.option("--optimizer", type=click.Choice(sorted(OPTIMIZERS)), default="adam", show_default=True)
@click.option("--momentum", type=float, help="For --optimizer sgd.")
@click.option("--workers", default=0, show_default=True, help="Loader processes for each process (torch).")
@click.option("--data-dir", help="A folder of MNIST-format files; without it, a sample of 5,000 digits.")
@click.option("--engine", default="auto", show_default=True, help="horovod, torch, mpi, serial or auto.")
@click.option("--fp16-allreduce", is_flag=True, help="Send gradients in half precision.")
@gpu_options(on_gpu=PLAIN)
@click.option("--checkpoint", metavar="DIR", help="Write a checkpoint after each epoch.")
@click.option("--resume", is_flag=True, help="Go on from the newest checkpoint.")
@click.option("--target-accuracy", type=float, help="Stop at this validation accuracy, in 0..1.")
@click.option("--out", metavar="DIR", help="Write DIR/summary.json.")
def main(framework: str, out: str | None, **options: Any) -> None:
    """Train a small CNN on handwritten digits."""
    watch_exceptions()
    trainer = hvdkit.apply(configured(options, framework), framework=framework)
    trainer.fit()
    if out is not None:
        write_summary(trainer, summarise(trainer), out)
    trainer.shutdown()


if __name__ == "__main__":
    main()
