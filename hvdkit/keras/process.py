"""Step 1: join the job."""

from __future__ import annotations

from hvdkit.job import world as worlds
from hvdkit.job.world import World
from hvdkit.keras_common.compat import library
from hvdkit.process.watch.judge import Limits


def init(
    engine: str = "auto", guard: bool | None = None, *, report_after: float = 60.0, stuck_after: float = 600.0
) -> World:
    """Step 1: join the job; a second call returns the same world.

    Args:
        engine: ``auto``, ``horovod``, ``torch`` (Keras on torch), ``mpi`` or ``serial``.
        guard: Compare data and weights between ranks now and then (``docs/keras.md``), and stop where they differ; None
            leaves it as it is, at first True.
        report_after: Name a rank for which others wait so many seconds.
        stuck_after: End the job if it stays in one place for so many seconds; ``hvdkit run`` and the environment
            (``HVDKIT_REPORT_AFTER``, ``HVDKIT_STUCK_AFTER``) have the last word on both.

    Raises:
        EngineError: The engine is unknown, not installed, or does not serve the library that Keras runs on.
        LaunchError: Launcher and engine do not fit, or disagree on the number of processes.
    """
    return worlds.init(engine, library(), guard, Limits(report_after, stuck_after))
