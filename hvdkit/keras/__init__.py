"""The eight verbs for Keras with compile and fit."""

from hvdkit.keras import callbacks
from hvdkit.keras.distribution import distribute
from hvdkit.keras.process import init
from hvdkit.keras.rates import warmup
from hvdkit.keras.sharding import shard, steps
from hvdkit.keras.synchronising import broadcast
from hvdkit.keras.trainer import make_trainer
from hvdkit.keras_objects.building import build_model, build_optimizer
from hvdkit.keras_objects.devices import default_device, pin
from hvdkit.keras_objects.files import SUFFIX, read_state, restore, save
from hvdkit.verbs import average, scale_lr

__all__ = [
    "SUFFIX",
    "average",
    "broadcast",
    "build_model",
    "build_optimizer",
    "callbacks",
    "default_device",
    "distribute",
    "init",
    "make_trainer",
    "pin",
    "read_state",
    "restore",
    "save",
    "scale_lr",
    "shard",
    "steps",
    "warmup",
]
