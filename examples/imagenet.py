"""Train a torchvision classifier on a folder of images, by one of four methods.

hvdkit run -np 2 examples/imagenet.py DIR -a resnet50 -b 256 --precision bf16
torchrun --nproc-per-node 2 examples/imagenet.py DIR --method ddp
python examples/imagenet.py DIR --method dp

DIR holds train/CLASS/*.jpg and val/CLASS/*.jpg.
"""

from __future__ import annotations

import difflib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import torch
import torchvision
from imagenet_data import image_folders
from imagenet_methods import METHODS, Single
from torch.nn.functional import cross_entropy
from torch.nn.modules.batchnorm import _NormBase

from hvdkit.errors import LaunchError, RecipeError
from hvdkit.process.failures import watch_exceptions
from hvdkit.recipe.plan import LearningRate

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
OPT_LEVELS = {"O0": "fp32", "O1": "fp16", "O2": "fp16"}
DECAY_EPOCHS = 30


@dataclass
class Run:
    """What a loop needs."""

    method: Single
    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    rates: LearningRate
    precision: str
    channels_last: bool
    step: int = 0
    skipped: int = 0

    def __post_init__(self) -> None:
        device = self.method.device.split(":")[0]
        self.called = self.model
        self.scaler = torch.amp.GradScaler(device, enabled=self.precision == "fp16")
        self.autocast = torch.autocast(device, DTYPES[self.precision], enabled=self.precision != "fp32")

    def move(self, batch: Any) -> list[torch.Tensor]:
        """Return images and labels on the device."""
        layout = torch.channels_last if self.channels_last else torch.contiguous_format
        images, labels = (part.to(self.method.device, non_blocking=True) for part in batch)
        return [images.to(memory_format=layout), labels]

    def update(self, loss: torch.Tensor) -> None:
        """Do one update; a step that overflowed in fp16 is skipped, on all processes."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.rates.at(self.step)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        before = self.scaler.get_scale()
        self.scaler.update()
        self.skipped += self.scaler.get_scale() < before
        self.optimizer.zero_grad()
        self.step += 1


def measured(outputs: torch.Tensor, labels: torch.Tensor, loss: torch.Tensor) -> torch.Tensor:
    """Return the sums of the loss, of images right at the first guess and within five, and the number of images."""
    right = outputs.detach().topk(min(5, outputs.shape[1])).indices == labels[:, None]
    ones = torch.ones((), device=loss.device)
    sums = [loss.detach() * len(labels), right[:, 0].sum(), right.sum(), ones * len(labels)]
    return torch.stack([value.double() for value in sums])


def means(run: Run, sums: Any) -> dict[str, float]:
    """Return loss, top-1 and top-5 over all processes, by counts."""
    loss, first, five, count = run.method.total(sums).tolist()
    return {"loss": loss / count, "top1": first / count, "top5": five / count}


def train_epoch(run: Run, epoch: int) -> dict[str, float]:
    """Train one epoch; the images per second are all processes', without the first step."""
    run.called.train()
    sums: Any = 0
    began, images = None, 0
    for batch in run.method.training_batches(epoch):
        x, y = run.move(batch)
        with run.autocast:
            outputs = run.called(x)
            loss = cross_entropy(outputs, y)
        run.update(loss)
        sums = sums + measured(outputs, y, loss)
        if began is None:
            sums.tolist()  # waits for the device
            began = time.perf_counter()
        else:
            images += len(y) * run.method.size
    averaged = means(run, sums)
    return {**averaged, "images_per_second": images / (time.perf_counter() - began)}


def evaluate(run: Run) -> dict[str, float]:
    """Return loss, top-1 and top-5 over all validation images, each counted once."""
    run.called.eval()
    sums: Any = torch.zeros(4, dtype=torch.float64, device=run.method.device)
    with torch.no_grad(), run.autocast:
        for batch in run.method.validation_batches(run.model):
            x, y = run.move(batch)
            outputs = run.called(x)
            sums = sums + measured(outputs, y, cross_entropy(outputs, y))
    return means(run, sums)


def check_arch(arch: str) -> None:
    """Check the name of a torchvision classifier.

    Raises:
        RecipeError: There is none of this name.
    """
    names = torchvision.models.list_models(module=torchvision.models)
    if arch not in names:
        near = difflib.get_close_matches(arch, names, 3) or names[:3]
        raise RecipeError(f"--arch {arch!r} is no classifier of torchvision; did you mean {', '.join(near)}?")


def build(arch: str, classes: int, lr: float, is_root: bool) -> torch.nn.Module:
    """Return a torchvision classifier with untrained weights."""
    options = {"aux_logits": False} if arch in ("inception_v3", "googlenet") else {}
    model = torchvision.models.get_model(arch, weights=None, num_classes=classes, **options)
    if lr >= 0.1 and is_root and not any(isinstance(module, _NormBase) for module in model.modules()):
        click.echo(f"warning: {arch} has no BatchNorm, with which --lr {lr:g} may not learn; try --lr 0.01", err=True)
    return model


def refuse_old_flags(options: dict[str, Any]) -> None:
    """Name what takes the place of flags that counted hosts and chose the transport.

    Raises:
        LaunchError: One of them was given.
    """
    url, backend, hosts, host = (options.pop(name) for name in ("dist_url", "dist_backend", "world_size", "rank"))
    if backend is not None:
        raise LaunchError("--dist-backend: NCCL is taken on GPUs and Gloo on CPUs; leave it out")
    if (url, hosts, host) != (None, None, None):
        address, _, port = (url or "tcp://FIRST_HOST:29500").removeprefix("tcp://").partition(":")
        where = f"--nnodes={hosts or 'HOSTS'} --node-rank={'THIS_HOST' if host is None else host}"
        raise LaunchError(
            "--dist-url, --world-size and --rank belong to the launcher now; on each host: "
            f"torchrun {where} --master-addr={address} --master-port={port} --nproc-per-node=GPUS imagenet.py ..."
        )


def precision_of(options: dict[str, Any]) -> str:
    """Return the precision that ``--precision`` or Apex's ``--opt-level`` names.

    Raises:
        RecipeError: Both are given, or the level has no safe counterpart.
    """
    level, precision = options.pop("opt_level"), options.pop("precision")
    if level is None:
        return precision or "fp32"
    if precision is not None:
        raise RecipeError("--opt-level and --precision say the same; give one of them")
    if level not in OPT_LEVELS:
        raise RecipeError(f"--opt-level {level}: use --precision bf16 or fp16, which keep weights in fp32")
    return OPT_LEVELS[level]


def report(run: Run, writer: Any, record: dict[str, float]) -> None:
    """Show an epoch on rank 0, and write it for TensorBoard."""
    if run.method.rank:
        return
    shown = ", ".join(f"{name} {value:.4f}" for name, value in record.items() if name != "epoch")
    skipped = f", {run.skipped} steps skipped" if run.precision == "fp16" else ""
    click.echo(f"epoch {record['epoch']:.0f}: {shown}{skipped}")
    if writer is not None:
        for name, value in record.items():
            writer.add_scalar(name, value, record["epoch"])
        writer.flush()


def tensorboard(folder: str | None, rank: int) -> Any:
    """Return a writer on rank 0, if a folder is given.

    Raises:
        RecipeError: TensorBoard is not installed.
    """
    if folder is None:
        return None
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise RecipeError("--tensorboard needs the package tensorboard; pip install tensorboard") from None
    return SummaryWriter(folder) if rank == 0 else None


def prepared(data: str, method: Single, options: dict[str, Any]) -> Run:
    """Return the run with data, model and optimizer in place."""
    check_arch(options["arch"])
    training, validation = image_folders(Path(data), options["image_size"])
    method.load(training, validation, options["batch_size"], options["workers"], options["seed"])
    if not method.steps:
        raise RecipeError(f"{len(training)} training images are less than one batch of all processes; lower -b")
    torch.manual_seed(options["seed"])
    model = build(options["arch"], len(training.classes), options["lr"], method.rank == 0).to(method.device)
    if options["channels_last"]:
        model = model.to(memory_format=torch.channels_last)
    target = options["lr"] * method.devices  # step 4
    optimizer = torch.optim.SGD(
        model.parameters(), target, momentum=options["momentum"], weight_decay=options["weight_decay"]
    )
    rates = LearningRate(
        options["lr"], target, method.steps, options["warmup_epochs"], lambda epoch: 0.1 ** (epoch // DECAY_EPOCHS)
    )
    return Run(method, model, optimizer, rates, options["precision"], options["channels_last"])


def train(run: Run, writer: Any, options: dict[str, Any], first: int, best: float) -> None:
    """Train up to the last epoch or to the wanted accuracy, with a checkpoint after each epoch."""
    method, folder = run.method, options["checkpoint"]
    for epoch in range(first, options["epochs"]):
        began = time.perf_counter()
        record = {"epoch": epoch + 1.0, **train_epoch(run, epoch)}
        record |= {f"val_{name}": value for name, value in evaluate(run).items()}
        report(run, writer, {**record, "lr": run.rates.at(run.step - 1), "seconds": time.perf_counter() - began})
        improved, best = record["val_top1"] > best, max(best, record["val_top1"])
        for name in ["checkpoint.pt", *(["best.pt"] if improved else [])] if folder else []:
            method.save(Path(folder) / name, run.model, run.optimizer, **_position(run, epoch + 1, best, options))
        if options["target_accuracy"] is not None and record["val_top1"] >= options["target_accuracy"]:
            break


def _position(run: Run, epoch: int, best: float, options: dict[str, Any]) -> dict[str, Any]:
    return {"epoch": epoch, "best": best, "arch": options["arch"], "step": run.step, "scaler": run.scaler.state_dict()}


@click.command()
@click.argument("data")
@click.option("-a", "--arch", default="resnet18", show_default=True, help="Any classifier of torchvision.")
@click.option("--method", type=click.Choice(list(METHODS)), default="horovod", show_default=True)
@click.option("-b", "--batch-size", type=click.IntRange(1), default=256, show_default=True, help="Per GPU, or process.")
@click.option(
    "--workers", type=click.IntRange(0), default=4, show_default=True, help="Loader processes of each process."
)
@click.option("--epochs", type=click.IntRange(1), default=90, show_default=True)
@click.option("--lr", default=0.1, show_default=True, help="Of one GPU or process; a tenth after every 30 epochs.")
@click.option("--warmup-epochs", default=5.0, show_default=True, help="Epochs until the scaled rate is reached.")
@click.option("--momentum", default=0.9, show_default=True)
@click.option("--weight-decay", default=1e-4, show_default=True)
@click.option("--precision", type=click.Choice(list(DTYPES)), help="Default: fp32.")
@click.option("--opt-level", type=click.Choice(["O0", "O1", "O2", "O3"]), help="Apex's name of a precision.")
@click.option("--channels-last", is_flag=True, help="Images and weights in NHWC strides.")
@click.option("--image-size", default=224, show_default=True, help="Pixels a side.")
@click.option("--target-accuracy", "--desired-acc", type=click.FloatRange(0, 1), help="Stop at this top-1, in 0..1.")
@click.option("--checkpoint", metavar="DIR", help="Write checkpoint.pt and best.pt after each epoch.")
@click.option("--resume", metavar="FILE", help="Go on from a checkpoint, of any method.")
@click.option("--evaluate", "only_evaluate", is_flag=True, help="Validate, and do not train.")
@click.option("--tensorboard", metavar="DIR", help="Write scalars of each epoch.")
@click.option("--seed", default=0, show_default=True)
@click.option("--dist-url", hidden=True)
@click.option("--dist-backend", hidden=True)
@click.option("--world-size", type=int, hidden=True)
@click.option("--rank", type=int, hidden=True)
def main(data: str, **options: Any) -> None:
    """Train a classifier on the images in DATA/train, validated on those in DATA/val."""
    watch_exceptions()
    refuse_old_flags(options)
    options["precision"] = precision_of(options)
    method = METHODS[options["method"]]()
    writer = tensorboard(options["tensorboard"], method.rank)
    run = prepared(data, method, options)
    first, best = 0, 0.0
    if options["resume"]:
        state = method.restore(Path(options["resume"]), run.model, run.optimizer)
        first, best, run.step = state["epoch"], state["best"], state["step"]
        run.scaler.load_state_dict(state["scaler"])
    run.called = method.distribute(run.model, run.optimizer)
    torch.manual_seed(options["seed"] + method.rank)  # augmentation is each process's own
    if options["only_evaluate"]:
        report(run, None, {"epoch": first, **{f"val_{name}": value for name, value in evaluate(run).items()}})
    else:
        train(run, writer, options, first, best)
    method.leave()


if __name__ == "__main__":
    main()
