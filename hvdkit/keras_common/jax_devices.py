"""A GPU for Keras on JAX, which would take memory on every GPU that it sees as soon as it starts."""

from __future__ import annotations

from importlib.metadata import entry_points

import jax
from jax._src.xla_bridge import backends_are_initialized

from hvdkit.job.devices import device_index
from hvdkit.job.gpus import gpus_shown
from hvdkit.job.world import World

_CHOICE = "jax_cuda_visible_devices"


def take_gpu(world: World) -> tuple[str, str]:
    """Let JAX see one GPU, by local rank; where JAX has started already, let it compute there.

    Returns:
        The device, and the UUID of a GPU where it is known.

    Raises:
        LaunchError: There are several GPUs, but fewer than processes on this node.
    """
    uuids = gpus_shown() if _may_take_gpus() else []
    numbers = _allowed(len(uuids))
    index = device_index(len(numbers), world.local_rank, world.local_size)
    if index is None:
        return "CPU", ""
    number = numbers[index]
    if backends_are_initialized():
        jax.config.update("jax_default_device", jax.local_devices()[index])
    else:
        jax.config.update(_CHOICE, str(number))
    return f"cuda:{number}", uuids[number]


def takes_gpu() -> bool:
    """Say whether JAX would compute on a GPU; it does not start for that."""
    return _may_take_gpus() and bool(_allowed(len(gpus_shown())))


def _may_take_gpus() -> bool:
    """Say whether JAX can compute on GPUs, and nobody wants it elsewhere."""
    if backends_are_initialized():
        return jax.default_backend() == "gpu"
    settings = jax.config.values
    wanted = settings.get("jax_platform_name") or settings["jax_platforms"] or "cuda"
    plugins = [plugin.name for plugin in entry_points(group="jax_plugins")]
    return wanted.split(",")[0] in ("cuda", "gpu") and any(name.startswith("xla_cuda") for name in plugins)


def _allowed(count: int) -> list[int]:
    """Return the numbers of the GPUs that JAX may take, in its order, of those that CUDA shows."""
    choice = jax.config.values[_CHOICE]
    numbers = range(count) if choice == "all" else sorted(map(int, choice.split(",")))
    return [number for number in numbers if number < count]
