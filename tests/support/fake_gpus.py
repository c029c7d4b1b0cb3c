"""GPUs that are not there, for bodies on ranks: ``with fake_gpus.torch(["a", "b"]) as taken``.

Each makes its framework see GPUs with the given UUIDs, and yields the list of what is then asked of the framework.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any
from unittest import mock


@contextlib.contextmanager
def torch(uuids: Sequence[str]) -> Iterator[list[Any]]:
    taken: list[Any] = []
    with mock.patch.multiple(
        "torch.cuda",
        device_count=lambda: len(uuids),
        is_available=lambda: bool(uuids),
        set_device=taken.append,
        get_device_properties=lambda index: SimpleNamespace(uuid=uuids[index]),
    ):
        yield taken


@contextlib.contextmanager
def tf(uuids: Sequence[str]) -> Iterator[list[Any]]:
    taken: list[Any] = []
    gpus = [f"/physical_device:GPU:{index}" for index in range(len(uuids))]
    tensorflow = importlib.import_module("tensorflow")
    devices = importlib.import_module("hvdkit.keras_common.devices")
    with contextlib.ExitStack() as patches:
        for holder, name, replaced in (
            (tensorflow.config, "list_physical_devices", lambda kind: gpus),
            (tensorflow.config, "get_visible_devices", lambda kind: gpus),
            (tensorflow.config, "set_visible_devices", lambda gpu, kind: taken.append(gpu)),
            (tensorflow.config.experimental, "set_memory_growth", lambda gpu, on: taken.append(("growth", gpu, on))),
            (devices, "gpus_shown", lambda: list(uuids)),
        ):
            patches.enter_context(mock.patch.object(holder, name, replaced))
        yield taken


@contextlib.contextmanager
def jax(uuids: Sequence[str], *, started: bool = False, plugin: str = "xla_cuda13", **settings: str) -> Iterator[Any]:
    """``settings`` are those of ``jax.config`` that the user has made."""
    found = importlib.import_module("jax").config.values
    taken: list[Any] = []
    config = SimpleNamespace(values={**found, **settings}, update=lambda *change: taken.append(change))
    module = SimpleNamespace(
        config=config,
        default_backend=lambda: "gpu",
        local_devices=lambda: [f"device {index}" for index in range(len(uuids))],
    )
    with mock.patch.multiple(
        "hvdkit.keras_common.jax_devices",
        jax=module,
        backends_are_initialized=lambda: started,
        gpus_shown=lambda: list(uuids),
        entry_points=lambda group: [SimpleNamespace(name=plugin)],
    ):
        yield taken
