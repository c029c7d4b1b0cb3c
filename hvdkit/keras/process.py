"""Step 1: join the job."""

from __future__ import annotations

from hvdkit.job import world as worlds
from hvdkit.job.world import World
from hvdkit.keras_common.compat import library


def init(engine: str = "auto", guard: bool | None = None) -> World:
    """Step 1: join the job; a second call returns the same world.

    Args:
        engine: ``auto``, ``horovod``, ``torch`` (Keras on torch), ``mpi`` or ``serial``.
        guard: Compare data and weights between ranks now and then (``docs/keras.md``), and stop where they differ; None
            leaves it as it is, at first True.

    Raises:
        EngineError: The engine is unknown, not installed, or does not serve the library that Keras runs on.
        LaunchError: Launcher and engine do not fit, or disagree on the number of processes.
    """
    return worlds.init(engine, library(), guard)
