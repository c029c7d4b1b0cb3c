"""The eight verbs for TensorFlow with a custom loop."""

from typing import TYPE_CHECKING

from hvdkit.keras_common.building import build_model, build_optimizer, seed_all
from hvdkit.keras_common.devices import default_device, pin
from hvdkit.keras_common.precision import computing_in
from hvdkit.keras_common.random_state import read_random_state, write_random_state
from hvdkit.keras_common.rates.schedules import scale_lr
from hvdkit.keras_common.state.exporting import export_weights
from hvdkit.keras_common.state.files import (
    SUFFIX,
    read_saved,
    restore,
    save,
    snapshot,
    synchronise_statistics,
    take_saved,
)
from hvdkit.tf.distribution import DistributedGradientTape, distribute
from hvdkit.tf.evaluation import evaluate
from hvdkit.tf.process import init
from hvdkit.tf.rates import warmup
from hvdkit.tf.sharding import shard
from hvdkit.tf.synchronising import broadcast
from hvdkit.tf.trainer import make_trainer
from hvdkit.training.gathering import gather
from hvdkit.training.horovod_names import guide
from hvdkit.training.verbs import average, steps

__all__ = [
    "SUFFIX",
    "DistributedGradientTape",
    "average",
    "broadcast",
    "build_model",
    "build_optimizer",
    "computing_in",
    "default_device",
    "distribute",
    "evaluate",
    "export_weights",
    "gather",
    "init",
    "make_trainer",
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
    "take_saved",
    "warmup",
    "write_random_state",
]

if not TYPE_CHECKING:  # a type check takes any name from a module with __getattr__
    __getattr__ = guide(__name__)
