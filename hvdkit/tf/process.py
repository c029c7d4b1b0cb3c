"""Step 1: join the job."""

from __future__ import annotations

from hvdkit.job import world as worlds
from hvdkit.job.world import World


def init(engine: str = "auto", guard: bool | None = None) -> World:
    """Step 1: join the job; a second call returns the same world.

    Args:
        engine: ``auto``, ``horovod``, ``mpi`` or ``serial``.
        guard: Compare data and weights between ranks now and then (``docs/keras.md``), and stop where they differ; None
            leaves it as it is, at first True.

    Raises:
        EngineError: The engine is unknown, not installed, or not built for TensorFlow.
        LaunchError: Launcher and engine do not fit, or disagree on the number of processes.
    """
    return worlds.init(engine, "tf", guard)
