"""The eight verbs for PyTorch."""

from typing import TYPE_CHECKING

from hvdkit.torch.building import build_model, build_optimizer
from hvdkit.torch.checkpointing import read_saved, restore, save, snapshot, take_saved
from hvdkit.torch.devices import default_device, init, pin
from hvdkit.torch.distribution import compression_losses, distribute, no_sync, synchronize
from hvdkit.torch.evaluation import evaluate
from hvdkit.torch.exporting import export_weights
from hvdkit.torch.graphs.capturing import capture
from hvdkit.torch.precision import computing_in
from hvdkit.torch.random_state import read_random_state, seed_all, write_random_state
from hvdkit.torch.rates import warmup
from hvdkit.torch.sharding import shard
from hvdkit.torch.synchronising import broadcast, synchronise_statistics
from hvdkit.torch.trainer import make_trainer
from hvdkit.training.gathering import gather
from hvdkit.training.horovod_names import guide
from hvdkit.training.verbs import average, scale_lr, steps

SUFFIX = "pt"

__all__ = [
    "SUFFIX",
    "average",
    "broadcast",
    "build_model",
    "build_optimizer",
    "capture",
    "compression_losses",
    "computing_in",
    "default_device",
    "distribute",
    "evaluate",
    "export_weights",
    "gather",
    "init",
    "make_trainer",
    "no_sync",
    "pin",
    "read_random_state",
    "read_saved",
    "restore",
    "save",
    "scale_lr",
    "seed_all",
    "shard",
    "snapshot",
    "steps",
    "synchronise_statistics",
    "synchronize",
    "take_saved",
    "warmup",
    "write_random_state",
]

if not TYPE_CHECKING:  # a type check takes any name from a module with __getattr__
    __getattr__ = guide(__name__)
