"""Four ways to train one torch model: one process, DataParallel, DistributedDataParallel, and hvdkit's eight steps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, Subset
from torch.utils.data.distributed import DistributedSampler

import hvdkit.torch as hk
from hvdkit.errors import CheckpointError, LaunchError
from hvdkit.job.files import write_atomically
from hvdkit.process.environment import launched_as
from hvdkit.torch.synchronising import synchronise_statistics


class Single:
    """One process on one device.

    Attributes:
        rank: This process.
        size: The number of processes.
        device: Where the model lives.
        devices: The number of devices that share an update, each with its own batch.
    """

    rank, size = 0, 1

    def __init__(self) -> None:
        if launched_as().size > 1:
            raise LaunchError(f"this method is one process, {launched_as().size} were started; use ddp or horovod")
        self.device = "cuda" if torch.cuda.is_available() else "cpu"

    @property
    def devices(self) -> int:
        return self.size

    def load(self, training: Dataset[Any], validation: Dataset[Any], batch_size: int, workers: int, seed: int) -> None:
        """Step 3: take this process's part of the data."""
        options = {"batch_size": batch_size * self.devices // self.size, "num_workers": workers}
        self.sampler = self._sampler(training, seed)
        self.training = DataLoader(
            training, sampler=self.sampler, shuffle=self.sampler is None, drop_last=True, **options
        )
        self.validation = DataLoader(self._own(validation), **options)

    def _sampler(self, _dataset: Dataset[Any], _seed: int) -> Any:
        return None

    def _own(self, dataset: Any) -> Any:
        return dataset

    @property
    def steps(self) -> int:
        """Updates per epoch."""
        return len(self.training)

    def training_batches(self, epoch: int) -> Iterator[Any]:
        """Yield this process's batches of an epoch, counted from 0."""
        if self.sampler is not None:
            self.sampler.set_epoch(epoch)
        yield from self.training

    def validation_batches(self, model: torch.nn.Module) -> Iterator[Any]:
        """Yield this process's validation batches; every image is on one process only."""
        yield from self.validation

    def distribute(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> torch.nn.Module:
        """Steps 5 and 6: return the model to be called in the loop."""
        return model

    def total(self, values: torch.Tensor) -> torch.Tensor:
        """Step 8: the sum of a float64 vector over all processes."""
        return values

    def save(self, path: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, **state: Any) -> None:
        """Step 7: write a checkpoint on rank 0."""
        content = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "state": state}
        if self.rank == 0:
            write_atomically(path, lambda file: torch.save(content, file))

    def restore(self, path: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Read a checkpoint; called before ``distribute``."""
        if not path.is_file():
            raise CheckpointError(f"checkpoint {path} does not exist")
        content = torch.load(path, map_location="cpu", weights_only=True)
        model.load_state_dict(content["model"])
        optimizer.load_state_dict(content["optimizer"])
        return content["state"]

    def leave(self) -> None:
        """End."""


class AllGpus(Single):
    """One process on all GPUs of this host (``torch.nn.DataParallel``); a batch per GPU."""

    @property
    def devices(self) -> int:
        return max(1, torch.cuda.device_count())

    def distribute(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> torch.nn.Module:
        return torch.nn.DataParallel(model)


class Ddp(Single):
    """One process per GPU, gradients averaged by ``DistributedDataParallel``."""

    def __init__(self) -> None:
        if launched_as().launcher != "torchrun":
            raise LaunchError("--method ddp: start it with torchrun, or with hvdkit run -np N --engine torch")
        cuda = torch.cuda.is_available()
        dist.init_process_group("nccl" if cuda else "gloo")
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.device = f"cuda:{dist.get_node_local_rank()}" if cuda else "cpu"
        if cuda:
            torch.cuda.set_device(self.device)

    def _sampler(self, dataset: Dataset[Any], seed: int) -> Any:
        return DistributedSampler(dataset, seed=seed, drop_last=True)

    def _own(self, dataset: Any) -> Any:
        return Subset(dataset, range(self.rank, len(dataset), self.size))

    def distribute(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> torch.nn.Module:
        return torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)

    def total(self, values: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(values)
        return values

    def leave(self) -> None:
        dist.destroy_process_group()


class Horovod(Single):
    """The eight steps of ``hvdkit.torch``, over Horovod or the engine that the launcher brings."""

    def __init__(self) -> None:
        world = hk.init()  # step 1
        self.device = hk.pin()  # step 2
        self.world, self.rank, self.size = world, world.rank, world.size

    def load(self, training: Dataset[Any], validation: Dataset[Any], batch_size: int, workers: int, seed: int) -> None:
        self.training = hk.shard(training, batch_size, seed=seed, uneven="drop", workers=workers)  # step 3
        self.validation = hk.shard(validation, batch_size, train=False, workers=workers)

    def training_batches(self, epoch: int) -> Iterator[Any]:
        self.training.set_epoch(epoch)
        yield from self.training

    def validation_batches(self, model: torch.nn.Module) -> Iterator[Any]:
        synchronise_statistics(model)
        yield from self.validation

    def distribute(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> torch.nn.Module:
        hk.distribute(optimizer, model)  # step 5
        hk.broadcast(model, optimizer)  # step 6
        return model

    def total(self, values: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(self.world.allreduce(values.cpu().numpy(), "sum"))  # step 8

    def save(self, path: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, **state: Any) -> None:
        hk.save(str(path), model, optimizer, **state)  # step 7

    def restore(self, path: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        return hk.restore(str(path), model, optimizer)

    def leave(self) -> None:
        self.world.shutdown()


METHODS = {"single": Single, "dp": AllGpus, "ddp": Ddp, "horovod": Horovod}
