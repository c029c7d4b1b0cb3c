"""Step 2 for TensorFlow and Keras: a device by local rank, and the CPU threads."""

from __future__ import annotations

from hvdkit.errors import LaunchError
from hvdkit.job import world as worlds
from hvdkit.job.devices import check_own, device_index, threads_for, torch_gpu
from hvdkit.job.gpus import gpus_shown
from hvdkit.job.world import World
from hvdkit.keras_common.compat import library
from hvdkit.process.environment import keras_torch_device


def pin(threads: int | str = "auto") -> str:
    """Step 2: take one GPU, by local rank, and share the CPU threads of the node.

    TensorFlow and JAX see this GPU alone, TensorFlow with memory growth; torch makes it the current one. Called by all
    ranks.

    Args:
        threads: CPU threads of this process; ``auto`` divides the cores by the processes of the node unless the user
            has set them, and changes nothing on one process. JAX has no setting for it.

    Returns:
        The device, such as ``GPU:1`` (TensorFlow), ``cuda:1`` (torch, JAX) or ``CPU``.

    Raises:
        LaunchError: There are fewer GPUs than processes on this node, several processes hold the same, TensorFlow is
            already in use, or ``KERAS_TORCH_DEVICE`` names another GPU.
    """
    world = worlds.current()
    number = threads_for(world, threads)
    kind = library()
    if kind == "tf":
        device, gpu = _take_tensorflow(world, number)
    elif kind == "torch":
        device, gpu = _take_torch(world, number)
    else:
        from hvdkit.keras_common.jax_devices import take_gpu

        device, gpu = take_gpu(world)
    check_own(world, gpu)
    return device


def _take_tensorflow(world: World, threads: int | None) -> tuple[str, str]:
    """Return the device, and the UUID of a GPU where it is known."""
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    index = device_index(len(gpus), world.local_rank, world.local_size)
    try:
        if threads is not None:
            tf.config.threading.set_intra_op_parallelism_threads(threads)
            tf.config.threading.set_inter_op_parallelism_threads(max(2, threads))
        if index is None:
            return "CPU", ""
        tf.config.set_visible_devices(gpus[index], "GPU")
        tf.config.experimental.set_memory_growth(gpus[index], True)
    except RuntimeError as error:
        raise LaunchError(
            "TensorFlow is in use already, so its devices and threads cannot be set; call pin() before any other "
            "TensorFlow operation"
        ) from error
    shown = gpus_shown()
    return f"GPU:{index}", shown[index] if len(shown) == len(gpus) else ""


def _take_torch(world: World, threads: int | None) -> tuple[str, str]:
    """Return the device, and the UUID of a GPU where it is known."""
    import torch

    if threads is not None:
        torch.set_num_threads(threads)
    wanted = keras_torch_device() or "cuda"
    if not wanted.startswith("cuda"):
        return wanted.upper(), ""
    index, gpu = torch_gpu(world)
    if index is None:
        return "CPU", ""
    # Keras puts tensors on "cuda", which is torch's current GPU
    if wanted not in ("cuda", f"cuda:{index}"):
        raise LaunchError(f"KERAS_TORCH_DEVICE is {wanted!r}, but this process takes cuda:{index}; unset the variable")
    return f"cuda:{index}", gpu


def default_device() -> str:
    """Return the device that Keras itself would take."""
    kind = library()
    if kind == "jax":
        from hvdkit.keras_common.jax_devices import takes_gpu

        return "cuda" if takes_gpu() else "CPU"
    if kind == "torch":
        import torch

        wanted = keras_torch_device() or ("cuda" if torch.cuda.is_available() else "cpu")
        return wanted if wanted.startswith("cuda") else wanted.upper()
    import tensorflow as tf

    return "GPU:0" if tf.config.get_visible_devices("GPU") else "CPU"
