"""Step 2 for TensorFlow and Keras: a device by local rank, and the CPU threads."""

from __future__ import annotations

from hvdkit.errors import LaunchError
from hvdkit.job import world as worlds
from hvdkit.job.devices import device_index, threads_for
from hvdkit.keras_common.compat import library


def pin(threads: int | str = "auto") -> str:
    """Step 2: show this process one GPU, by local rank, with memory growth, and share the CPU threads of the node.

    Args:
        threads: CPU threads of this process; ``auto`` divides the cores by the processes of the node unless the user
            has set them, and changes nothing on one process.

    Returns:
        The device, such as ``GPU:1`` or ``CPU``.

    Raises:
        LaunchError: There are fewer GPUs than processes on this node, or TensorFlow is already in use.
    """
    world = worlds.current()
    number = threads_for(world, threads)
    kind = library()
    if kind == "tf":
        return _pin_tensorflow(number)
    if kind == "torch" and number is not None:
        import torch

        torch.set_num_threads(number)
    return "CPU"


def _pin_tensorflow(threads: int | None) -> str:
    import tensorflow as tf

    world = worlds.current()
    gpus = tf.config.list_physical_devices("GPU")
    index = device_index(len(gpus), world.local_rank, world.local_size)
    try:
        if threads is not None:
            tf.config.threading.set_intra_op_parallelism_threads(threads)
            tf.config.threading.set_inter_op_parallelism_threads(max(2, threads))
        if index is None:
            return "CPU"
        tf.config.set_visible_devices(gpus[index], "GPU")
        tf.config.experimental.set_memory_growth(gpus[index], True)
    except RuntimeError as error:
        raise LaunchError(
            "TensorFlow is in use already, so its devices and threads cannot be set; call pin() before any other "
            "TensorFlow operation"
        ) from error
    return f"GPU:{index}"


def default_device() -> str:
    """Return the device that Keras itself would take."""
    return "CPU"
