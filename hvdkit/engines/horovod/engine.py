"""Horovod, through the extension of the framework that is trained."""

from __future__ import annotations

import importlib
import itertools
import os
import time
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from hvdkit.engines.base import Array, Bytes, Engine
from hvdkit.engines.horovod.installed import built_for, check_build_matches
from hvdkit.engines.horovod.spec import bindings, obstacle
from hvdkit.errors import EngineError
from hvdkit.process.environment import LaunchedAs, prefer

_Call = Callable[..., Array]

# not every system has sched_yield
_yield_core: Callable[[], None] = getattr(os, "sched_yield", lambda: time.sleep(0))

_MODULES = {"torch": "horovod.torch", "tf": "horovod.tensorflow"}


def load_binding(library: str) -> Any:
    """Import Horovod's module for a tensor library, ``torch`` or ``tf``.

    Raises:
        EngineError: Horovod is missing, was built without this framework, or for another version of it.
    """
    missing = obstacle(library, launcher=None)
    if missing:
        raise EngineError(missing)
    check_build_matches(library)
    try:
        return importlib.import_module(_MODULES[library])
    except (ImportError, OSError) as error:
        reason = str(error).strip().splitlines()[-1]
        raise EngineError(
            f"Horovod's extension for {library} does not load ({reason}); "
            f"rebuild it with: hvdkit build-horovod --framework {library}"
        ) from error


class HorovodEngine(Engine):
    """Collectives by Horovod's background thread.

    Attributes:
        binding: ``horovod.torch`` or ``horovod.tensorflow``.
        channel_numbers: Numbers for the names of channels' tensors.

    Raises:
        EngineError: Horovod is missing or does not fit the framework.
    """

    name: ClassVar[str] = "horovod"

    def __init__(self, library: str) -> None:
        self.binding = load_binding(library)
        self._call: _Call = _call_torch if library == "torch" else _call_tensorflow
        _tune(library)
        self.binding.init()
        self.rank, self.size = self.binding.rank(), self.binding.size()
        self._calls = 0
        # channels are opened in the same order on all ranks
        self.channel_numbers = itertools.count()

    def placement(self) -> tuple[int, int, int, int] | None:
        """Return Horovod's own numbers under TensorFlow, whose devices are fixed by its first operation."""
        if self._call is _call_torch:
            return None
        horovod = self.binding
        return horovod.local_rank(), horovod.local_size(), horovod.cross_rank(), horovod.cross_size()

    def shutdown(self) -> None:
        """End Horovod's background thread."""
        self.binding.shutdown()

    def _run(self, operation: str, flat: Array, **options: Any) -> Array:
        self._calls += 1
        return self._call(self.binding, operation, flat, name=f"hvdkit.array.{self._calls}", **options)

    def _do_allreduce(self, flat: Array, op: str) -> Array:
        operation = {"sum": self.binding.Sum, "min": self.binding.Min, "max": self.binding.Max}[op]
        return self._run("allreduce", flat, op=operation)

    def _do_broadcast(self, flat: Bytes, root: int) -> Bytes:
        return self._run("broadcast", flat, root_rank=root) if len(flat) else flat

    def _do_allgather(self, flat: Bytes, counts: list[int]) -> Bytes:
        return self._run("allgather", flat) if sum(counts) else flat

    def _do_alltoall(self, flat: Bytes, send: list[int], receive: list[int]) -> Bytes:
        return self._run("alltoall", flat, splits=np.array(send, np.int32))


def _tune(library: str) -> None:
    """Set what Horovod reads at its start: on GPUs the host need not wait for the reduction, nor long for its cycle.

    On the CPU a short cycle takes time from the training; there Horovod's default stays.
    """
    if library != "torch":
        return
    import torch

    if torch.cuda.is_available():
        prefer("HOROVOD_ENABLE_ASYNC_COMPLETION", "1")
        prefer("HOROVOD_CYCLE_TIME", "0.2")


def finish(binding: Any, handle: Any) -> Any:
    """Wait for an asynchronous operation of ``horovod.torch`` and return its result.

    Horovod's own wait holds the interpreter's lock, which would silence the control channel.
    """
    patience = time.monotonic() + 0.003
    while not binding.poll(handle):
        # from a sleep one comes back late; but in a long wait Horovod's thread needs the core for itself
        if time.monotonic() < patience:
            _yield_core()
        else:
            time.sleep(5e-4)
    return binding.synchronize(handle)


def _call_torch(binding: Any, operation: str, flat: Array, **options: Any) -> Array:
    import torch

    if "splits" in options:
        options["splits"] = torch.from_numpy(options["splits"])
    tensor = torch.from_numpy(flat if flat.flags.writeable else flat.copy())
    result = finish(binding, getattr(binding, f"{operation}_async")(tensor, **options))
    received: Array = (result[0] if isinstance(result, tuple) else result).numpy()
    return received


def _call_tensorflow(binding: Any, operation: str, flat: Array, **options: Any) -> Array:
    import tensorflow as tf

    # arrays travel at once, also while a tf.function is being traced
    with tf.init_scope(), tf.device("CPU"):
        result = getattr(binding, operation)(tf.constant(flat), **options)
    received: Array = (result[0] if isinstance(result, (tuple, list)) else result).numpy()
    return received


def start(library: str | None, _launched: LaunchedAs) -> HorovodEngine:
    """Start the engine through a library's extension, the first that is built for a program without one."""
    candidates = bindings(library)
    return HorovodEngine(next((name for name in candidates if built_for(name)), candidates[0]))
