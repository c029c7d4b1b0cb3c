"""Step 1: join the job."""

from __future__ import annotations

from hvdkit import world as worlds
from hvdkit.keras_objects.versions import library
from hvdkit.world import World


def init(engine: str = "auto") -> World:
    """Step 1: join the job; a second call returns the same world.

    Args:
        engine: ``auto``, ``horovod``, ``torch`` (Keras on torch), ``mpi`` or ``serial``.

    Raises:
        EngineError: The engine is unknown, not installed, or does not serve the library that Keras runs on.
        LaunchError: Launcher and engine do not fit, or disagree on the number of processes.
    """
    return worlds.init(engine, library())
