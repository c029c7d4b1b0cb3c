"""Torch on several engines side by side: a plain loop, DDP, stock Horovod, and hvdkit over each engine.

Started by any launcher; all methods take turns in the same processes, so that their ratios are of one run:

    hvdkit run -np 2 --engine mpi -m benchmarks.torch_engines --arch mnist_cnn --batch 64
"""

from __future__ import annotations

import gc
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import torch

from benchmarks import torch_methods
from benchmarks.torch_methods import Job


def model_and_batch(arch: str, batch: int, device: str, layout: str) -> tuple[torch.nn.Module, Any, Any]:
    """Build a model and one synthetic batch on a device."""
    torch.manual_seed(0)
    if arch == "mnist_cnn":
        from hvdkit.torch.models import named_model

        model, shape, classes = named_model("mnist_cnn", 0), (1, 28, 28), 10
    elif arch.startswith("cifar_resnet"):
        import torchvision

        model = torchvision.models.get_model(arch.removeprefix("cifar_"), num_classes=10)
        shape, classes = (3, 32, 32), 10
        model.conv1, model.maxpool = torch.nn.Conv2d(3, 64, 3, padding=1, bias=False), torch.nn.Identity()
    else:
        import torchvision

        model, shape, classes = torchvision.models.get_model(arch), (3, 224, 224), 1000
    x = torch.randn(batch, *shape, device=device)
    y = torch.randint(0, classes, (batch,), device=device)
    model = model.to(device)
    if layout == "channels_last":
        model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    return model, x, y


class Runner:
    """One method's model, optimizer and batch."""

    def __init__(self, job: Job, name: str, arch: str, batch: int, options: dict[str, Any]) -> None:
        layout = options["layout"]
        layout = "contiguous" if name == "horovod" else layout
        self.model, self.x, self.y = model_and_batch(arch, batch, job.device, layout)
        if name == "horovod-best" and layout == "channels_last":
            # stock Horovod refuses parameters in channels_last strides, but the activations may have them
            self.model = self.model.to(memory_format=torch.contiguous_format)
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), lr=1e-3, momentum=0.9, fused=job.device != "cpu" or None
        )
        if options["compiled"] and not name.startswith("ddp"):
            self.model.compile()
        self.model, self.optimizer = torch_methods.METHODS[name](job, self.model, self.optimizer)
        if options["compiled"] and name.startswith("ddp"):
            # as its manual says: the compiler cuts the graph at DDP's buckets
            self.model = torch.compile(self.model)
        self._autocast = options["precision"] == "bf16"
        self._device = job.device.split(":")[0]
        self.step = torch_methods.CAPTURES.get(name, torch_methods.as_it_is)(job, self)

    def update(self) -> None:
        """Do one update."""
        with torch.autocast(self._device, torch.bfloat16, enabled=self._autocast):
            loss = torch.nn.functional.cross_entropy(self.model(self.x), self.y)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def seconds_per_step(job: Job, runner: Runner, steps: int) -> float:
    """Return the slowest rank's seconds for one step."""
    job.wait_for_all()
    began = time.perf_counter()
    for _ in range(steps):
        runner.step()
    if job.device != "cpu":
        torch.cuda.synchronize()
    return job.slowest((time.perf_counter() - began) / steps)


def measure(
    job: Job, names: list[str], build: Callable[[str], Runner], steps: int, rounds: int, warmup: int
) -> dict[str, dict[str, Any]]:
    """Measure all methods in turn; return the samples per second of each round, over all ranks, and the memory."""
    runners: dict[str, Runner] = {}
    results: dict[str, dict[str, Any]] = {}
    for name in names:
        held = _reserved(job)
        runners[name] = build(name)
        seconds_per_step(job, runners[name], warmup)
        results[name] = {"rounds": [], "reserved_bytes": _reserved(job, emptied=False) - held}
    for _ in range(rounds):
        for name, runner in runners.items():
            ranks = 1 if name == "plain" else job.size
            seconds = seconds_per_step(job, runner, steps)
            results[name]["rounds"].append(len(runner.x) * ranks / seconds)
    return results


def _reserved(job: Job, *, emptied: bool = True) -> int:
    """Return the bytes of the GPU that this process holds, without what it holds for later use if asked for."""
    if job.device == "cpu":
        return 0
    if emptied:
        gc.collect()
        torch.cuda.empty_cache()
    return torch.cuda.memory_reserved()


def _table(job: Job, arch: str, batch: int, results: dict[str, dict[str, Any]]) -> str:
    medians = {name: statistics.median(result["rounds"]) for name, result in results.items()}
    base = medians.get("ddp")
    how = (", compiled" if job.compiled else "") + ("" if job.compression == "none" else f", {job.compression} sent")
    lines = [f"{arch}, batch {batch} per process, {job.size} process(es), {job.device}{how}"]
    for name, value in medians.items():
        ratio = f"{value / base:6.3f} x DDP" if base else ""
        spread = (max(results[name]["rounds"]) - min(results[name]["rounds"])) / value
        memory = results[name]["reserved_bytes"] / 2**30
        lines.append(f"  {name:22} {value:10.1f} samples/s  {ratio}  spread {spread:.1%}  {memory:.2f} GiB")
    return "\n".join(lines)


def _write(path: Path, job: Job, report: list[dict[str, Any]]) -> None:
    about = {"torch": torch.__version__, "device": job.device_name(), "python": platform.python_version()}
    path.write_text(json.dumps({"about": about, "series": report}, indent=1))


@click.command()
@click.option(
    "--arch",
    "archs",
    multiple=True,
    default=["mnist_cnn"],
    help="mnist_cnn, cifar_resnet18 (or 34, …), or torchvision's.",
)
@click.option("--batch", "batches", multiple=True, type=int, default=[64], help="Samples per process.")
@click.option("--precision", type=click.Choice(["fp32", "bf16"]), default="fp32", show_default=True)
@click.option("--layout", type=click.Choice(["contiguous", "channels_last"]), default="contiguous", show_default=True)
@click.option("--compile", "compiled", is_flag=True, help="Compile the model, for every method.")
@click.option("--compression", type=click.Choice(["none", "fp16", "bf16"]), default="none", show_default=True)
@click.option("--method", "methods", multiple=True, help="Default: all that this machine has.")
@click.option("--steps", default=20, show_default=True, help="Updates in a round.")
@click.option("--rounds", default=6, show_default=True)
@click.option("--warmup", default=10, show_default=True, help="Updates left out.")
@click.option("--json", "path", help="Write all rounds to this file, after each comparison.")
def main(archs: list[str], batches: list[int], methods: list[str], path: str | None, **options: Any) -> None:
    """Compare methods; every pair of --arch and --batch is one comparison."""
    torch.backends.cudnn.benchmark = True
    job = Job.join(options["compiled"], options["compression"])
    names = list(methods) or job.available()
    report: list[dict[str, Any]] = []
    for arch in archs:
        for batch in batches:
            results = measure(
                job,
                names,
                lambda name: Runner(job, name, arch, batch, options),  # noqa: B023
                options["steps"],
                options["rounds"],
                options["warmup"],
            )
            report.append({"arch": arch, "batch": batch, "size": job.size, **options, "results": results})
            if job.rank == 0:
                click.echo(_table(job, arch, batch, results))
                if path:
                    _write(Path(path), job, report)
            gc.collect()
            if job.device != "cpu":
                torch.cuda.empty_cache()
    job.leave()


if __name__ == "__main__":
    main()
