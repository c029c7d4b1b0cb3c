"""What ``end_to_end`` compares: the same model trained on the same data, as scripts and recipes do it."""

from __future__ import annotations

import functools
import importlib.util
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import hvdkit
import hvdkit.torch as hk
from benchmarks.torch_methods import Job
from hvdkit.process.environment import launched_as

MOMENTUM = 0.9


@dataclass(frozen=True)
class Task:
    """What all methods train; incomplete global batches are left out.

    Attributes:
        data: Neutral arrays, or a data set of torch's.
        model: The name of one of hvdkit's, or what builds one.
        batch_size: Samples per process and step.
        lr: Of one process; all methods multiply it by their number.
        precision: ``fp32`` or ``bf16``.
        workers: Loader processes of each process; hvdkit takes arrays without any.
        seed: Of the first weights and the order of samples.
    """

    data: hvdkit.Data
    model: Any
    batch_size: int
    lr: float
    precision: str
    workers: int
    seed: int = 0

    @property
    def hvdkit_workers(self) -> int:
        """Loader processes of each process under hvdkit."""
        return 0 if isinstance(self.data.train, tuple) else self.workers

    @functools.cached_property
    def training(self) -> Dataset[Any]:
        """The data set of a script."""
        return _dataset(self.data.train)

    @functools.cached_property
    def validation(self) -> Any:
        """The validation set of a script."""
        return _dataset(self.data.validation)


def _dataset(data: Any) -> Any:
    if not isinstance(data, tuple):
        return data
    return TensorDataset(torch.from_numpy(data[0]).permute(0, 3, 1, 2).contiguous(), torch.from_numpy(data[1]))


def seconds(job: Job, action: Callable[[], Any]) -> tuple[float, Any]:
    """Return the slowest rank's seconds, and what the action returned."""
    job.wait_for_all()
    began = time.perf_counter()
    result = action()
    if job.device != "cpu":
        torch.cuda.synchronize()
    return job.slowest(time.perf_counter() - began), result


class Loop:
    """A loop in a script; the ways to distribute it are subclasses.

    Attributes:
        steps: Updates per epoch.
    """

    steps: int
    model: torch.nn.Module
    optimizer: Any

    def __init__(self, job: Job, task: Task) -> None:
        self.job, self.task = job, task
        self.device = torch.device(job.device)
        self.epochs = 0
        self.prepare()

    def prepare(self) -> None:
        """Make model, optimizer and batches."""
        raise NotImplementedError

    def batches(self) -> Iterator[Any]:
        """Yield the batches of an epoch on the device."""
        raise NotImplementedError

    def autocast(self) -> torch.autocast:
        """Return the context in which the model computes."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.task.precision == "bf16")

    def step(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Do one update; return the loss."""
        self.optimizer.zero_grad()
        with self.autocast():
            loss = cross_entropy(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        return loss

    def train(self, epochs: int) -> list[float]:
        """Train so many epochs; return the mean loss of this rank in each."""
        return [self.epoch() for _ in range(epochs)]

    def epoch(self) -> float:
        """Train once on all data; return the mean loss of this rank."""
        self.model.train()
        total = torch.zeros((), device=self.device)
        for x, y in self.batches():
            total += self.step(x, y).detach()
        self.epochs += 1
        return float(total) / self.steps

    def plain(self) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        """Return model and optimizer as a script makes them."""
        model = hk.build_model(self.task.model, self.task.seed, "cpu", self.task.data).to(self.device)
        return model, torch.optim.SGD(model.parameters(), self.task.lr * self.job.size, MOMENTUM)

    def _loader(self, **options: Any) -> DataLoader[Any]:
        task = self.task
        return DataLoader(task.training, task.batch_size, drop_last=True, num_workers=task.workers, **options)


class Sampled(Loop):
    """A loop over a ``DataLoader`` with a ``DistributedSampler``."""

    def prepare(self) -> None:
        task, job = self.task, self.job
        self.sampler = DistributedSampler(task.training, job.size, job.rank, seed=task.seed, drop_last=True)
        self.loader = self._loader(sampler=self.sampler, **self.loading())
        self.steps = len(self.loader)

    def loading(self) -> dict[str, Any]:
        """Return further options of the loader."""
        return {}

    def batches(self) -> Iterator[Any]:
        self.sampler.set_epoch(self.epochs)
        for x, y in self.loader:
            yield x.to(self.device), y.to(self.device)


class Loader(Sampled):
    """The loader without training, which is the limit of what trains on files."""

    def train(self, epochs: int) -> list[float]:
        """Load all data so many times."""
        for _ in range(epochs):
            for _ in self.loader:
                pass
        return []


class Ddp(Sampled):
    """PyTorch's tutorial."""

    wrapping: ClassVar[dict[str, bool]] = {}

    def prepare(self) -> None:
        super().prepare()
        model, self.optimizer = self.plain()
        devices = None if self.device.type == "cpu" else [self.device]
        self.model = DistributedDataParallel(model, devices, **self.wrapping)

    def accuracy(self) -> float:
        """Return the share of validation samples that are right, over all ranks."""
        self.model.eval()
        mine = Subset(self.task.validation, range(self.job.rank, len(self.task.validation), self.job.size))
        right = torch.zeros((), device=self.device)
        with torch.no_grad(), self.autocast():
            for x, y in DataLoader(mine, self.task.batch_size, num_workers=self.task.workers):
                right += (self.model(x.to(self.device)).argmax(1) == y.to(self.device)).sum()
        dist.all_reduce(right)
        return float(right) / len(self.task.validation)


class TunedDdp(Ddp):
    """The same with what PyTorch's notes on performance advise, but for compilation."""

    wrapping: ClassVar[dict[str, bool]] = {"gradient_as_bucket_view": True, "static_graph": True}

    def loading(self) -> dict[str, Any]:
        return {"pin_memory": self.device.type == "cuda", "persistent_workers": self.task.workers > 0}

    def plain(self) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        model = super().plain()[0].to(memory_format=torch.channels_last)
        rate = self.task.lr * self.job.size
        return model, torch.optim.SGD(model.parameters(), rate, MOMENTUM, fused=self.device.type == "cuda" or None)

    def batches(self) -> Iterator[Any]:
        self.sampler.set_epoch(self.epochs)
        for x, y in self.loader:
            images = x.to(self.device, memory_format=torch.channels_last, non_blocking=True)
            yield images, y.to(self.device, non_blocking=True)


class Accelerated(Loop):
    """Hugging Face Accelerate, which splits the batches, moves them and casts."""

    def prepare(self) -> None:
        from accelerate import Accelerator

        precision = "bf16" if self.task.precision == "bf16" else "no"
        self.accelerator = Accelerator(mixed_precision=precision, cpu=self.device.type == "cpu")
        self.model, self.optimizer, self.loader = self.accelerator.prepare(*self.plain(), self._loader(shuffle=True))
        self.steps = len(self.loader)

    def batches(self) -> Iterator[Any]:
        yield from self.loader

    def step(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = cross_entropy(self.model(x), y)
        self.accelerator.backward(loss)
        self.optimizer.step()
        return loss


class Horovod(Sampled):
    """Stock Horovod."""

    def prepare(self) -> None:
        import horovod.torch as hvd

        super().prepare()
        self.model, optimizer = self.plain()
        hvd.broadcast_parameters(self.model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        self.optimizer = hvd.DistributedOptimizer(optimizer, self.model.named_parameters())


class EightLines(Loop):
    """hvdkit's verbs; the first two, ``init`` and ``pin``, are the job's."""

    def prepare(self) -> None:
        task = self.task
        self.shards = hk.shard(task.data.train, task.batch_size, uneven="drop", workers=task.hvdkit_workers)
        self.model = hk.build_model(task.model, task.seed, self.job.device, task.data)
        self.optimizer = torch.optim.SGD(self.model.parameters(), hk.scale_lr(task.lr), MOMENTUM)
        hk.distribute(self.optimizer, self.model)
        hk.broadcast(self.model, self.optimizer)
        self.steps = hk.steps(self.shards)

    def batches(self) -> Iterator[Any]:
        for x, y in self.shards:
            yield x.to(self.device, non_blocking=True), y.to(self.device, non_blocking=True)

    def epoch(self) -> float:
        return float(hk.average(super().epoch()))


class Captured(EightLines):
    """The same with the step as one CUDA graph."""

    def prepare(self) -> None:
        super().prepare()
        self.step = hk.capture(super().step, self.optimizer, self.model)  # type: ignore[attr-defined, method-assign]


class Recipe:
    """hvdkit's ``fit``."""

    def __init__(self, _job: Job, task: Task, **changes: Any) -> None:
        recipe = hvdkit.Recipe(
            model=task.model,
            data=task.data,
            optimizer=hvdkit.SGD(lr=task.lr, momentum=MOMENTUM),
            batch_size=task.batch_size,
            seed=task.seed,
            precision=task.precision,
            shard=hvdkit.Shard(uneven="drop", workers=task.hvdkit_workers),
        )
        self.trainer = hvdkit.apply(recipe.replace(**changes), framework="torch")
        self.model, self.steps = self.trainer.model, self.trainer.steps_per_epoch

    def train(self, epochs: int) -> list[float]:
        """Train so many epochs; return the mean loss in each."""
        return self.trainer.fit(self.trainer.epoch + epochs).values("loss")[-epochs:]


class UpdateAlone:
    """The updates of an epoch, all on one batch that stays on the device."""

    def __init__(self, loop: Loop) -> None:
        self.loop, self.steps = loop, loop.steps
        self.model = loop.model.train()
        x, y = next(loop.batches())
        self.x, self.y = x.clone(), y.clone()

    def train(self, epochs: int) -> list[float]:
        """Do those of so many epochs."""
        total = torch.zeros((), device=self.loop.device)
        for _ in range(epochs * self.steps):
            total += self.loop.step(self.x, self.y).detach()
        return [float(total) / (epochs * self.steps)]


METHODS: dict[str, Callable[[Job, Task], Any]] = {
    "loader": Loader,
    "ddp": Ddp,
    "ddp-tuned": TunedDdp,
    "accelerate": Accelerated,
    "horovod": Horovod,
    "recipe": Recipe,
    "eight-lines": EightLines,
    "captured": Captured,
}


def left_out(job: Job) -> dict[str, str]:
    """Return the methods that cannot run here, and why."""
    reasons = {}
    if importlib.util.find_spec("accelerate") is None:
        reasons["accelerate"] = "not installed"
    elif job.size > 1 and launched_as().launcher != "torchrun":
        reasons["accelerate"] = "not started: hvdkit run --engine torch"
    if "horovod" not in job.worlds:
        installed = importlib.util.find_spec("horovod") is not None
        reasons["horovod"] = "not started: hvdkit run --engine horovod" if installed else "not installed"
    if not hasattr(hk, "capture"):
        reasons["captured"] = "not in this hvdkit"
    return reasons
